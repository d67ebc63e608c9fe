pub struct AlignedBuffer;
