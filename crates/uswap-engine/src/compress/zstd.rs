//! Zstandard, in memory of ours.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::NonNull;

use super::{Corrupt, PAGE_BYTES, Workspace};

/// Measured on pages of real programs: -1 has ratio 2.86 at 6.3 us a page to compress and 2.7 to decompress, 1 has 3.19 at 10.4
/// and 4.3. A fault waits for the decompression, so -1.
const ZSTD_LEVEL: c_int = -1;

/// Zstandard's two contexts.
///
/// # Invariants
/// `compress` and `decompress` were made by `ZSTD_initStatic...` in the workspaces beside them, and are not null.
pub struct Zstd {
    compress: NonNull<zstd_sys::ZSTD_CCtx>,
    decompress: NonNull<zstd_sys::ZSTD_DCtx>,
    _compress_memory: Workspace,
    _decompress_memory: Workspace,
}

impl Zstd {
    /// Takes all memory that both will need.
    pub fn new() -> Zstd {
        // SAFETY: functions of plain numbers.
        let (compress_bytes, decompress_bytes) = unsafe {
            let parameters = zstd_sys::ZSTD_getCParams(ZSTD_LEVEL, PAGE_BYTES as u64, 0);
            (zstd_sys::ZSTD_estimateCCtxSize_usingCParams(parameters), zstd_sys::ZSTD_estimateDCtxSize())
        };
        // A quarter more than the estimate, which leaves out what the advanced interface adds. If it were still too
        // little, `ZSTD_compress2` would refuse each page, and the tests of `compress` would show it.
        let compress_memory = Workspace::new(compress_bytes + compress_bytes / 4);
        let decompress_memory = Workspace::new(decompress_bytes);
        // SAFETY: each workspace is writable, aligned to 8 bytes, as large as said, and lives as long as the context.
        let (compress, decompress) = unsafe {
            (
                zstd_sys::ZSTD_initStaticCCtx(compress_memory.as_ptr(), compress_memory.bytes()),
                zstd_sys::ZSTD_initStaticDCtx(decompress_memory.as_ptr(), decompress_memory.bytes()),
            )
        };
        let zstd = Zstd {
            compress: NonNull::new(compress).expect("the estimate is enough for a context"),
            decompress: NonNull::new(decompress).expect("the estimate is enough for a context"),
            _compress_memory: compress_memory,
            _decompress_memory: decompress_memory,
        };

        use zstd_sys::ZSTD_cParameter::{
            ZSTD_c_checksumFlag, ZSTD_c_compressionLevel, ZSTD_c_dictIDFlag, ZSTD_c_experimentalParam2 as ZSTD_C_FORMAT,
        };
        use zstd_sys::ZSTD_dParameter::ZSTD_d_experimentalParam1 as ZSTD_D_FORMAT;
        // Without the magic number a frame is 4 bytes shorter.
        let magicless = zstd_sys::ZSTD_format_e::ZSTD_f_zstd1_magicless as c_int;
        for (parameter, value) in [
            (ZSTD_c_compressionLevel, ZSTD_LEVEL),
            (ZSTD_C_FORMAT, magicless),
            (ZSTD_c_checksumFlag, 0),
            (ZSTD_c_dictIDFlag, 0),
        ] {
            // SAFETY: the context is live and not in the middle of a frame.
            let status = unsafe { zstd_sys::ZSTD_CCtx_setParameter(zstd.compress.as_ptr(), parameter, value) };
            assert!(!is_zstd_error(status), "zstd refuses a parameter");
        }
        // SAFETY: as above.
        let status = unsafe { zstd_sys::ZSTD_DCtx_setParameter(zstd.decompress.as_ptr(), ZSTD_D_FORMAT, magicless) };
        assert!(!is_zstd_error(status), "zstd refuses a parameter");
        zstd
    }

    /// How many bytes it became; `None` when they do not fit.
    pub fn compress(&mut self, page: &[u8; PAGE_BYTES], out: &mut [u8]) -> Option<usize> {
        // SAFETY: the context is live by the type's invariant and ours alone by `&mut`; both buffers are as large as
        // said.
        let status = unsafe {
            zstd_sys::ZSTD_compress2(
                self.compress.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                page.as_ptr().cast(),
                page.len(),
            )
        };
        (!is_zstd_error(status)).then_some(status)
    }

    /// Anything that is not exactly one page is corrupt.
    pub fn decompress(&mut self, bytes: &[u8], out: &mut [u8; PAGE_BYTES]) -> Result<(), Corrupt> {
        // SAFETY: as in `compress`.
        let status = unsafe {
            zstd_sys::ZSTD_decompressDCtx(
                self.decompress.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                bytes.as_ptr().cast(),
                bytes.len(),
            )
        };
        // An error code is far above 4096.
        if status == PAGE_BYTES { Ok(()) } else { Err(Corrupt) }
    }
}

fn is_zstd_error(status: usize) -> bool {
    // SAFETY: a function of a plain number.
    unsafe { zstd_sys::ZSTD_isError(status) != 0 }
}
