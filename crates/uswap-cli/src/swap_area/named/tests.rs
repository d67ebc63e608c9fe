use super::super::tests::Directory;
use super::*;
use std::path::PathBuf;

impl Directory {
    fn spec(&self, name: &str, size_bytes: Option<u64>) -> SwapSpec {
        SwapSpec { path: self.0.join(name), size_bytes, priority: None, overwrite: false }
    }

    fn write(&self, name: &str, length: u64, content: &[(u64, &[u8])]) -> PathBuf {
        let path = self.0.join(name);
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path).unwrap();
        file.set_len(length).unwrap();
        for (at, bytes) in content {
            file.write_all_at(bytes, *at).unwrap();
        }
        path
    }
}

fn named(spec: &SwapSpec) -> Result<OpenArea, Failure> {
    look_at(spec, &[])?.take()
}

#[track_caller]
fn refusal(spec: &SwapSpec) -> String {
    match named(spec) {
        Ok(_) => panic!("it was not refused"),
        Err(failure) => failure.to_string(),
    }
}

/// Takes it, and keeps it if it is new.
fn take(spec: &SwapSpec) -> OpenArea {
    let mut area = named(spec).unwrap_or_else(|failure| panic!("{failure}"));
    if let Some(new) = area.new.take() {
        new.keep();
    }
    area
}

#[test]
fn a_new_file_is_private_and_known_again() {
    let directory = Directory::new("new");
    let spec = directory.spec("swap", Some(4 << 20));
    let area = take(&spec);
    assert_eq!(area.config.slots, 1024);
    assert!(area.config.punch_holes);
    assert_eq!(fs::metadata(&spec.path).unwrap().mode() & 0o777, 0o600);
    assert!(refusal(&spec).contains("in use"));
    drop(area);
    assert_eq!(take(&directory.spec("swap", None)).config.slots, 1024);
    assert_eq!(take(&directory.spec("swap", Some(2 << 20))).config.slots, 512);
    assert_eq!(take(&directory.spec("swap", Some(8 << 20))).config.slots, 2048);
    assert_eq!(take(&directory.spec("swap", None)).config.slots, 2048);
}

#[test]
fn a_new_file_goes_again_unless_it_is_used() {
    let directory = Directory::new("unused");
    let spec = directory.spec("swap", Some(4 << 20));
    drop(look_at(&spec, &[]).unwrap_or_else(|failure| panic!("{failure}")));
    assert!(!spec.path.exists());
    drop(named(&spec).unwrap_or_else(|failure| panic!("{failure}")));
    assert!(!spec.path.exists());
    // Another file of that name stays.
    let area = named(&spec).unwrap_or_else(|failure| panic!("{failure}"));
    fs::remove_file(&spec.path).unwrap();
    fs::write(&spec.path, "another").unwrap();
    drop(area);
    assert_eq!(fs::read(&spec.path).unwrap(), b"another");
    for bad in [directory.spec("bad", None), directory.spec("bad", Some(4096)), directory.spec("bad", Some(1 << 62))] {
        refusal(&bad);
        assert!(!bad.path.exists());
    }
}

/// Where each of these has its magic number or its data, and what of it is blank before.
#[test]
fn a_file_with_content_is_left_alone_wherever_that_lies() {
    let directory = Directory::new("content");
    type Piece<'a> = (u64, &'a [u8]);
    let kinds: [(&str, u64, &[Piece<'_>]); 7] = [
        ("thesis", 4 << 20, &[(0, b"years of work")]),
        ("after-the-first-page", 4 << 20, &[(4096, b"data")]),
        ("iso", 4 << 20, &[(0x8001, b"CD001")]),
        ("btrfs", 4 << 20, &[(0x10040, b"_BHRfS_M")]),
        ("in-the-middle", 64 << 20, &[(33 << 20, b"x")]),
        ("gpt-copy-at-the-end", 64 << 20, &[((64 << 20) - 512, b"EFI PART")]),
        ("last-byte-of-an-odd-length", (4 << 20) + 5, &[((4 << 20) + 4, b"x")]),
    ];
    for (name, length, content) in kinds {
        let path = directory.write(name, length, content);
        let before = fs::read(&path).unwrap();
        for size in [None, Some(2 << 20), Some(128 << 20)] {
            let text = refusal(&directory.spec(name, size));
            assert!(text.contains(&format!("not blank: there is data at byte {}", content[0].0)), "{text}");
            assert!(text.contains(&format!("--swap file:{},overwrite uses it all the same", path.display())), "{text}");
        }
        assert!(fs::read(&path).unwrap() == before, "{name} was changed");
    }
}

#[test]
fn overwrite_is_taken_at_its_word() {
    let directory = Directory::new("overwrite");
    let path = directory.write("disk", 4 << 20, &[(0, b"old"), (3 << 20, b"old")]);
    let area = take(&SwapSpec { overwrite: true, ..directory.spec("disk", None) });
    assert_eq!((area.config.slots, area.config.punch_holes), (1024, true));
    drop(area);
    assert_eq!(take(&directory.spec("disk", None)).config.slots, 1024, "it is a swap area from then on");
    // It does not make a file that is in use free.
    let holder = File::open(&path).unwrap();
    assert!(refusal(&SwapSpec { overwrite: true, ..directory.spec("disk", None) }).contains("in use"));
    drop(holder);
}

#[test]
fn a_blank_file_is_used_in_all_its_length_or_less() {
    let directory = Directory::new("blank");
    let path = directory.write("blank", 8 << 20, &[(1 << 20, &[0; 100_000])]);
    assert_eq!(take(&directory.spec("blank", Some(2 << 20))).config.slots, 512);
    assert_eq!(fs::metadata(&path).unwrap().len(), 8 << 20, "it does not become shorter");
    assert_eq!(take(&directory.spec("blank", None)).config.slots, 2048);
}

#[test]
fn a_formatted_file_keeps_its_size_and_header() {
    let directory = Directory::new("mkswap");
    let spec = directory.spec("formatted", None);
    let mut page = mkswap::format(512, [1; 16]);
    page[1052..1057].copy_from_slice(b"admin");
    page[1032] = 1;
    page[1536] = 9;
    for length in [4096, (2 << 20) - 1, 4 << 20] {
        let path = directory.write("formatted", length, &[(0, &page)]);
        let text = refusal(&spec);
        let said = format!("tells of 2097152 bytes, and it has {}", length / 4096 * 4096);
        assert!(text.contains(&said) && text.contains(",overwrite"), "{text}");
        assert_eq!(fs::metadata(path).unwrap().len(), length);
    }
    directory.write("formatted", 2 << 20, &[]);
    let area = take(&spec);
    assert_eq!((area.config.slots, area.config.punch_holes), (512, false));
    assert_eq!(area.bad_pages, [9]);
    drop(area);
    assert_eq!(take(&directory.spec("formatted", Some(1 << 20))).config.slots, 256);
    assert!(refusal(&directory.spec("formatted", Some(4 << 20))).contains("2097152 bytes"));
    assert_eq!(fs::read(&spec.path).unwrap()[..4096], page);
}

#[test]
fn a_file_that_somebody_has_open_is_in_use() {
    let directory = Directory::new("open");
    let path = directory.write("swap", 4 << 20, &[]);
    for writes in [true, false] {
        let holder = File::options().read(true).write(writes).open(&path).unwrap();
        assert!(refusal(&directory.spec("swap", None)).contains("somebody else has it open"));
        drop(holder);
    }
    assert_eq!(take(&directory.spec("swap", None)).config.slots, 1024);
}

#[test]
fn a_file_that_changes_after_the_look_is_left_alone() {
    let directory = Directory::new("changed");
    let path = directory.write("swap", 4 << 20, &[]);
    let spec = directory.spec("swap", None);
    let mut candidate = look_at(&spec, &[]).unwrap_or_else(|failure| panic!("{failure}"));
    // As on a file system without leases: with one, who opens the file would wait.
    candidate.lease = None;
    std::thread::sleep(Duration::from_millis(20));
    File::options().write(true).open(&path).unwrap().write_all_at(b"written", 2 << 20).unwrap();
    let text = candidate.take().err().expect("it was not refused").to_string();
    assert!(text.contains("somebody else changes it"), "{text}");
    let mut expected = vec![0; 4 << 20];
    expected[2 << 20..(2 << 20) + 7].copy_from_slice(b"written");
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn who_opens_the_file_meanwhile_waits_until_it_is_a_swap_area() {
    let directory = Directory::new("meanwhile");
    let path = directory.write("swap", 4 << 20, &[]);
    let spec = directory.spec("swap", None);
    let candidate = look_at(&spec, &[]).unwrap_or_else(|failure| panic!("{failure}"));
    if candidate.lease.is_none() {
        eprintln!("skipped: no leases in {}", directory.0.display());
        return;
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| File::options().write(true).open(&path).unwrap());
        while candidate.lease.as_ref().unwrap().holds() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // It comes when the lease is let go, stays, and so the file is in use.
        let text = candidate.take().err().expect("it was not refused").to_string();
        assert!(text.contains("in use"), "{text}");
        drop(other.join().unwrap());
    });
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn an_empty_file_needs_a_size() {
    let directory = Directory::new("empty");
    directory.write("empty", 0, &[]);
    assert!(refusal(&directory.spec("empty", None)).contains("size=8G"));
    assert!(refusal(&directory.spec("empty", Some(4096))).contains("1 MiB"));
    assert!(refusal(&directory.spec("not-there", None)).contains("size=8G"));
    directory.write("small", 1000, &[]);
    assert!(refusal(&directory.spec("small", None)).contains("1 MiB"));
    assert_eq!(take(&directory.spec("small", Some(1 << 20))).config.slots, 256);
    assert!(refusal(&directory.spec("empty", Some(16 << 40))).contains("16 TiB"));
}

#[test]
fn what_is_no_file_is_refused_by_name() {
    let directory = Directory::new("kinds");
    let at = |path: &str| SwapSpec { path: path.into(), size_bytes: Some(4 << 20), priority: None, overwrite: true };
    for path in ["/dev/null", "/dev/zero", "/dev/tty"] {
        let text = refusal(&at(path));
        assert!(text.contains("a character device, neither a file nor a block device"), "{text}");
    }
    assert!(refusal(&at(directory.0.to_str().unwrap())).contains("a directory"));
    let fifo = directory.0.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert!(refusal(&directory.spec("fifo", Some(4 << 20))).contains("a FIFO"));
    let _socket = std::os::unix::net::UnixListener::bind(directory.0.join("socket")).unwrap();
    assert!(refusal(&directory.spec("socket", Some(4 << 20))).contains("a socket"));
    std::os::unix::fs::symlink("nowhere", directory.0.join("link")).unwrap();
    let text = refusal(&directory.spec("link", Some(4 << 20)));
    assert!(text.contains("a symbolic link to 'nowhere', which is not there"), "{text}");
    assert!(!directory.0.join("nowhere").exists());
    let text = refusal(&directory.spec("no/such/swap", Some(4 << 20)));
    assert!(text.contains(&format!("no directory '{}'", directory.0.join("no").display())), "{text}");
}

#[test]
fn a_symbolic_link_to_a_file_is_followed() {
    let directory = Directory::new("link");
    directory.write("target", 4 << 20, &[]);
    std::os::unix::fs::symlink("target", directory.0.join("link")).unwrap();
    assert_eq!(take(&directory.spec("link", None)).config.slots, 1024);
}

#[test]
fn the_same_file_twice_is_refused_at_once() {
    let directory = Directory::new("twice");
    directory.write("swap", 4 << 20, &[]);
    fs::hard_link(directory.0.join("swap"), directory.0.join("again")).unwrap();
    let specs = [directory.spec("swap", None), directory.spec("again", None)];
    let first = look_at(&specs[0], &[]).unwrap_or_else(|failure| panic!("{failure}"));
    let text = look_at(&specs[1], &[first]).err().expect("it was not refused").to_string();
    assert!(text.contains("named twice"), "{text}");
}

#[test]
fn insecure_permissions_are_warned_of_as_swapon_does() {
    let directory = Directory::new("mode");
    let path = directory.write("swap", 4 << 20, &[]);
    let warnings = |mode: u32| {
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        look_at(&directory.spec("swap", None), &[]).unwrap_or_else(|failure| panic!("{failure}")).warnings
    };
    let about_mode = |mode| warnings(mode).into_iter().filter(|line| line.contains("permissions")).collect::<Vec<_>>();
    assert_eq!(about_mode(0o600), [""; 0]);
    let expected = format!("warning: '{}': insecure permissions 0644, 0600 suggested", path.display());
    assert_eq!(about_mode(0o644), [expected]);
    assert_eq!(about_mode(0o4600).len(), 1);
}
