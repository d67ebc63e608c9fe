//! `uswap sim header`: what the first page of a swap area says, and what swapon(2) would make of it.

use std::fmt::Write;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use clap::Args;
use uswap_linux::swap_entry::PteFormat;
use uswap_linux::swap_header::{self, Backing, HEADER_BYTES, SwapHeader};

use crate::failure::{Failure, reason};

/// Check and print the header of a swap area.
#[derive(Args)]
pub struct HeaderArgs {
    /// A file that was formatted by mkswap, or a block device
    file: PathBuf,
}

pub fn main(arguments: &HeaderArgs) -> Result<(), Failure> {
    let shown = arguments.file.display();
    let cannot_read = |error: std::io::Error| Failure::bad_input(format!("cannot read '{shown}': {}", reason(&error)));
    let mut file = File::open(&arguments.file).map_err(cannot_read)?;
    let regular_file = file.metadata().map_err(cannot_read)?.is_file();
    let mut page = Vec::with_capacity(HEADER_BYTES);
    file.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut page).map_err(cannot_read)?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(cannot_read)?;

    let backing =
        Backing { pages: bytes / HEADER_BYTES as u64, regular_file, slots_max: PteFormat::X86_64.slots_max() };
    let refuse =
        |bad: swap_header::BadHeader| Failure::bad_input(format!("'{shown}' is no swap area ({}): {bad}", bad.errno()));
    let layout = swap_header::check(&page, backing).map_err(refuse)?;
    let header = SwapHeader::parse(&page).map_err(refuse)?;
    crate::output::print(&describe(&header, layout.slots, &layout.bad))
}

fn describe(header: &SwapHeader, slots: u64, bad: &[u64]) -> String {
    let label = String::from_utf8_lossy(&header.label);
    let uuid: Vec<String> = [0..4, 4..6, 6..8, 8..10, 10..16]
        .into_iter()
        .map(|part| header.uuid[part].iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}")))
        .collect();
    let mut text = format!(
        "byte order  {:?}\nlabel       {}\nuuid        {}\npages       {slots}, of which the first is the header\nusable      {} KiB\n",
        header.byte_order,
        label.trim_end_matches('\0').escape_debug(),
        uuid.join("-"),
        (slots - 1 - bad.len() as u64) * (HEADER_BYTES as u64 / 1024),
    );
    let _ = write!(text, "bad pages   {}", bad.len());
    for (index, page) in bad.iter().enumerate() {
        let _ = write!(text, "{}{page}", if index == 0 { ": " } else { ", " });
    }
    text.push('\n');
    text
}
