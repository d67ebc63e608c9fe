//! What a command says on standard output.

use std::io::{ErrorKind, Write};

use crate::failure::{Failure, reason};

/// Prints to standard output. Who has closed it does not want it.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::ours(format!("cannot write the result: {}", reason(&error))))
        }
        _ => Ok(()),
    }
}
