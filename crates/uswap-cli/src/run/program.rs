//! Finding the program as execvp(3) would, and saying beforehand why the agent could not get into it.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use uswap_sys::elf::{self, Class, MACHINE_X86_64, Program};
use uswap_sys::launch;

use crate::failure::{Failure, reason};

/// Where execvp(3) looks when PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// A script's interpreter may be a script; Linux follows so many.
const SCRIPTS_MAX: u32 = 5;
const SHELL: &str = "/bin/sh";

/// A program that the agent can get into.
#[derive(Debug)]
pub struct Runnable {
    file: PathBuf,
    arguments: Vec<OsString>,
    /// The kernel may not know what it is (ENOEXEC): it is asked, because binfmt_misc may.
    may_be_for_shell: bool,
}

impl Runnable {
    /// The file that is executed.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The same by the shell, as execvp(3) does it after ENOEXEC; `None` if it would be of no use.
    pub fn by_shell(&self) -> Result<Option<Runnable>, Failure> {
        if !self.may_be_for_shell {
            return Ok(None);
        }
        check(Path::new(SHELL), 0)?;
        let mut arguments = self.arguments.clone();
        arguments[0] = self.file.clone().into();
        arguments.insert(0, SHELL.into());
        Ok(Some(Runnable { file: SHELL.into(), arguments, may_be_for_shell: false }))
    }

    /// Ready to be started.
    pub fn with_environment(&self, environment: launch::Environment) -> launch::Program {
        let c_string = |text: &OsStr| CString::new(text.as_bytes()).expect("arguments have no null bytes");
        launch::Program {
            file: c_string(self.file.as_os_str()),
            arguments: self.arguments.iter().map(|argument| c_string(argument)).collect(),
            environment,
        }
    }

    /// For what execve(2) has against it.
    pub fn failure(&self, error: &io::Error) -> Failure {
        Failure::not_executable(format!("cannot run '{}': {}", self.file.display(), reason(error)))
    }
}

/// Finds and checks a command.
pub fn find(command: &[OsString]) -> Result<Runnable, Failure> {
    let Some(name) = command.first() else {
        return Err(Failure::ours("no command given: uswap run [OPTIONS] [--] COMMAND [ARG...]"));
    };
    let file = search(name, std::env::var_os("PATH").as_deref())?;
    let may_be_for_shell = check(&file, 0)? == RunBy::KernelOrShell;
    Ok(Runnable { file, arguments: command.to_vec(), may_be_for_shell })
}

fn search(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let shown = Path::new(name).display();
    let not_found = || Failure::not_found(format!("command not found: '{shown}'"));
    let not_executable = |why: &str| Failure::not_executable(format!("cannot run '{shown}': {why}"));
    if name.is_empty() {
        return Err(not_found());
    }
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return match usable(&file) {
            Usable::Yes => Ok(file),
            Usable::Missing => Err(not_found()),
            Usable::No(why) => Err(not_executable(why)),
        };
    }
    let mut found_but = None;
    for directory in std::env::split_paths(path.unwrap_or(OsStr::new(DEFAULT_PATH))) {
        // An empty entry is the current directory.
        let file = if directory.as_os_str().is_empty() { Path::new(".").join(name) } else { directory.join(name) };
        match usable(&file) {
            Usable::Yes => return Ok(file),
            Usable::Missing => {}
            Usable::No(why) => found_but = Some(why),
        }
    }
    Err(found_but.map_or_else(not_found, not_executable))
}

enum Usable {
    Yes,
    Missing,
    No(&'static str),
}

fn usable(file: &Path) -> Usable {
    match std::fs::metadata(file) {
        Ok(metadata) if metadata.is_dir() => Usable::No("it is a directory"),
        Ok(_) if rustix::fs::access(file, Access::EXEC_OK).is_err() => Usable::No("it is not executable"),
        Ok(_) => Usable::Yes,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Usable::No("Permission denied"),
        Err(_) => Usable::Missing,
    }
}

#[derive(PartialEq, Eq)]
enum RunBy {
    Itself,
    /// Neither a program nor a script that says by what: what binfmt_misc has an interpreter for, or the shell reads.
    KernelOrShell,
}

/// Whether the dynamic loader will load the agent into a file; interpreters of scripts are followed.
fn check(file: &Path, depth: u32) -> Result<RunBy, Failure> {
    let shown = file.display();
    let cannot_manage = |why: &str| Failure::ours(format!("cannot manage '{shown}': {why}"));
    let program = match elf::inspect(file) {
        Ok(program) => program,
        // Executable but not readable: whatever it is, it will show.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(RunBy::Itself),
        Err(error) => {
            return Err(Failure::not_executable(format!("cannot run '{shown}': {}", reason(&error))));
        }
    };
    match program {
        Program::Script { interpreter, .. } => {
            if depth >= SCRIPTS_MAX {
                return Err(Failure::not_executable(format!("cannot run '{shown}': too many levels of scripts")));
            }
            match usable(&interpreter) {
                Usable::Yes => check(&interpreter, depth + 1).map(|_| RunBy::Itself),
                Usable::Missing | Usable::No(_) => Err(Failure::not_executable(format!(
                    "cannot run '{shown}': its interpreter '{}' cannot be run",
                    interpreter.display()
                ))),
            }
        }
        Program::Dynamic { interpreter, class, machine } => {
            if class != Class::Bits64 || machine != MACHINE_X86_64 {
                return Err(cannot_manage("it is not a 64-bit x86-64 program"));
            }
            if !is_loader_of_glibc(&interpreter) {
                let why = format!("its loader '{}' is not glibc's, which the agent needs", interpreter.display());
                return Err(cannot_manage(&why));
            }
            match privileges(file) {
                Some(why) => Err(cannot_manage(&format!("it is {why}, so the loader ignores preloaded libraries"))),
                None => Ok(RunBy::Itself),
            }
        }
        Program::Static { class, machine } => {
            if class != Class::Bits64 || machine != MACHINE_X86_64 {
                return Err(cannot_manage("it is not a 64-bit x86-64 program"));
            }
            // Nobody loads the loader, and it loads the agent itself.
            if is_loader_of_glibc(file) {
                return Ok(RunBy::Itself);
            }
            Err(cannot_manage("it is statically linked, so no library can be preloaded"))
        }
        Program::NotExecutable => Err(Failure::not_executable(format!("cannot run '{shown}': it is not executable"))),
        Program::Unknown => Ok(RunBy::KernelOrShell),
    }
}

fn is_loader_of_glibc(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"))
}

/// What makes the loader distrust its environment for this file and user, if anything does: execve(2) would
/// change the user, the group or the capabilities.
fn privileges(file: &Path) -> Option<&'static str> {
    let metadata = std::fs::metadata(file).ok()?;
    let no_suid = rustix::fs::statvfs(file).is_ok_and(|fs| fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    if no_suid || rustix::thread::no_new_privs().unwrap_or(false) {
        return None;
    }
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let mode = metadata.mode();
    if mode & 0o4000 != 0 && metadata.uid() != user {
        return Some("setuid");
    }
    // Without the group's execute bit it is not setgid but a mark for locking.
    if mode & 0o2010 == 0o2010 && metadata.gid() != group {
        return Some("setgid");
    }
    // Root has them anyway: nothing is gained.
    let capabilities = rustix::fs::getxattr(file, c"security.capability", &mut [0u8; 64]).is_ok();
    (user != 0 && capabilities).then_some("given capabilities by its file")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("uswap-program-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn command(words: &[&OsStr]) -> Vec<OsString> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn failure(file: &Path) -> (u8, String) {
        let failure = find(&command(&[file.as_os_str()])).unwrap_err();
        (failure.status(), failure.to_string())
    }

    #[test]
    fn a_program_is_found_in_path() {
        let sh = find(&command(&[OsStr::new("sh"), OsStr::new("-c")])).unwrap();
        assert!(sh.file().is_absolute() && sh.file().ends_with("sh"));
        assert_eq!(sh.arguments, ["sh", "-c"]);
    }

    #[test]
    fn missing_and_not_executable_are_told_apart() {
        let directory = Directory::new("missing");
        let plain = directory.file("plain", b"#!/bin/sh\n", 0o644);
        assert_eq!(failure(&plain).0, 126);
        assert_eq!(failure(&directory.0).0, 126);
        assert_eq!(failure(&directory.0.join("nothing")).0, 127);
        assert_eq!(failure(Path::new("surely-no-such-command")).0, 127);
        assert_eq!(failure(Path::new("")).0, 127);
        assert_eq!(find(&[]).unwrap_err().status(), 125);
        // In PATH, a file that may not be executed is passed over, and remembered.
        let path = OsString::from(format!("{}:/bin", directory.0.display()));
        assert_eq!(search(OsStr::new("plain"), Some(&path)).unwrap_err().status(), 126);
        directory.file("sh", b"", 0o644);
        assert_eq!(search(OsStr::new("sh"), Some(&path)).unwrap(), Path::new("/bin/sh"));
    }

    #[test]
    fn scripts_are_followed_to_their_interpreter() {
        let directory = Directory::new("scripts");
        let good = directory.file("good", b"#!/bin/sh\nexit 0\n", 0o755);
        assert_eq!(find(&command(&[good.as_os_str()])).unwrap().file(), good);
        let lost = directory.file("lost", b"#!/no/such/interpreter\n", 0o755);
        let (status, text) = failure(&lost);
        assert!(status == 126 && text.contains("/no/such/interpreter"), "{text}");
        let circle =
            directory.file("circle", format!("#!{}\n", directory.0.join("circle").display()).as_bytes(), 0o755);
        assert_eq!(failure(&circle).0, 126);
    }

    #[test]
    fn text_without_an_interpreter_goes_to_the_kernel_and_then_to_the_shell() {
        let directory = Directory::new("text");
        let text = directory.file("text", b"exit 0\n", 0o755);
        let runnable = find(&command(&[text.as_os_str(), OsStr::new("x")])).unwrap();
        assert_eq!(runnable.file(), text);
        let by_shell = runnable.by_shell().unwrap().unwrap();
        assert_eq!(by_shell.file(), Path::new("/bin/sh"));
        assert_eq!(by_shell.arguments, [OsStr::new("/bin/sh"), text.as_os_str(), OsStr::new("x")]);
        assert!(by_shell.by_shell().unwrap().is_none());
        assert!(find(&command(&[OsStr::new("sh")])).unwrap().by_shell().unwrap().is_none());
    }
}
