//! pagemap
