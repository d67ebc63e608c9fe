//! Real programs in a half or a third of their memory: same output, same status, every time.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use uswap_e2e::{
    Budget, Launch, MIB, Random, Running, Share, TempDir, c_program, compare, is_root, need, repeat, script, sized,
    tool,
};

const FIVE_MINUTES: Duration = Duration::from_secs(300);

#[test]
fn cpython_objects_and_a_forking_pool() {
    let Some(python) = need("python3", "python3") else {
        return;
    };
    let test = TempDir::new("cpython");
    // A version manager may have put a shell script under this name.
    let answer = tool(Command::new(python).args(["-c", "import sys; print(sys.executable)"]));
    let python = String::from_utf8(answer.stdout).expect("a path");
    let program = Launch::new(&test, python.trim())
        .arg(script("objects.py"))
        .arg(sized("4", "8"))
        .env("PYTHONHASHSEED", "0")
        .time_limit(FIVE_MINUTES);
    compare(&program, Share::Half, |_, _| {});
}

#[test]
fn sqlite_in_memory_database() {
    let Some(sqlite) = need("sqlite3", "sqlite3") else {
        return;
    };
    let test = TempDir::new("sqlite");
    let statements = test.join("statements.sql");
    let rows = sized(300_000, 1_200_000);
    let text = format!(
        ".bail on\n\
         PRAGMA cache_size=-2000000; PRAGMA temp_store=MEMORY;\n\
         CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c INT);\n\
         WITH RECURSIVE x(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM x WHERE i<{rows})\n\
         INSERT INTO t SELECT i, printf('row %d %x', i*7919%1000003, i*2654435761), i*48271%2147483647 FROM x;\n\
         CREATE INDEX tb ON t(b); CREATE INDEX tc ON t(c);\n\
         UPDATE t SET c=c+1 WHERE c%97=0;\n\
         DELETE FROM t WHERE a%13=0;\n\
         PRAGMA integrity_check;\n\
         SELECT count(*), sum(c), sum(length(b)) FROM t;\n\
         SELECT sum(a*(rank%1000)) FROM (SELECT a, row_number() OVER (ORDER BY b, a) AS rank FROM t);\n"
    );
    std::fs::write(&statements, text).expect("a writable directory");
    let program = Launch::new(&test, sqlite).arg(":memory:").stdin(&statements).time_limit(FIVE_MINUTES);
    compare(&program, Share::Half, |_, finished| {
        assert!(finished.text().starts_with("ok\n"), "integrity_check\n{finished}");
    });
}

#[test]
fn gnu_sort() {
    let Some(sort) = need("sort", "coreutils") else {
        return;
    };
    let test = TempDir::new("sort");
    let program = Launch::new(&test, sort)
        .args(["-S", sized("150M", "1200M"), "--parallel=2", "-k1,1", "input", "-o", "output"])
        .time_limit(FIVE_MINUTES);
    write_lines(&program.work().join("input"), sized(60_000_000, 500_000_000));
    let (output, expected) = (program.work().join("output"), program.work().join("expected"));
    compare(&program, Share::Half, |recorded, finished| {
        if recorded.is_none() {
            assert!(in_order(&output), "sort itself is wrong");
            std::fs::rename(&output, &expected).expect("rename inside one directory");
        } else {
            assert!(same_content(&output, &expected), "the sorted file differs\n{finished}");
        }
    });
}

/// Lines of 100 bytes with random keys, `bytes` in all.
fn write_lines(path: &Path, bytes: u64) {
    let mut random = Random::new(7);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).expect("a writable directory"));
    for number in 0..bytes / 100 {
        let key = random.word();
        writeln!(file, "{key:016x} {number:010} {:-<71}", key % 1_000_003).expect("space for the input");
    }
    file.flush().expect("space for the input");
}

fn in_order(path: &Path) -> bool {
    let mut before = String::new();
    for line in BufReader::with_capacity(1 << 20, File::open(path).expect("the output")).lines() {
        let line = line.expect("text");
        if line < before {
            return false;
        }
        before = line;
    }
    true
}

fn same_content(one: &Path, other: &Path) -> bool {
    let open = |path: &Path| File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut one, mut other) = (open(one), open(other));
    if one.metadata().expect("a size").len() != other.metadata().expect("a size").len() {
        return false;
    }
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let length = one.read(&mut left).expect("a readable file");
        if length == 0 {
            return true;
        }
        other.read_exact(&mut right[..length]).expect("a file of the same length");
        if left[..length] != right[..length] {
            return false;
        }
    }
}

#[test]
fn stress_ng_verifies_all_methods() {
    let Some(stress) = need("stress-ng", "stress-ng") else {
        return;
    };
    let test = TempDir::new("stress-ng");
    let program = Launch::new(&test, stress)
        .args([
            "--vm",
            "2",
            "--vm-bytes",
            sized("96M", "160M"),
            "--vm-method",
            "all",
            "--vm-keep",
            "--verify",
            "--seed",
            "7",
        ])
        .args(["--oomable", "--timeout", sized("8", "20")])
        .time_limit(FIVE_MINUTES);
    compare(&program, Share::Half, |_, finished| {
        let said = format!("{}{}", finished.text(), finished.stderr);
        assert!(said.contains("successful run completed"), "{finished}");
        assert!(!said.contains("fail:") && !said.contains("error detected"), "{finished}");
    });
}

#[test]
fn memtester_finds_no_fault() {
    let Some(memtester) = need("memtester", "memtester") else {
        return;
    };
    let Some(setpriv) = need("setpriv", "util-linux") else {
        return;
    };
    let test = TempDir::new("memtester");
    // Locked memory is not swapped, so memtester must not be able to lock.
    let mut program = Launch::new(&test, "prlimit").arg("--memlock=0:0");
    if is_root() {
        program = program.arg(setpriv).args(["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"]);
    }
    let program = program
        .arg(memtester)
        .args([sized("40M", "160M"), "1"])
        .env("MEMTESTER_TEST_MASK", sized("0x1ff", "0x3ff"))
        .time_limit(FIVE_MINUTES);
    compare(&program, Share::Half, |_, finished| {
        let said = finished.text();
        assert!(said.contains("Done.") && !said.contains("FAILURE"), "{finished}");
    });
}

#[test]
fn xz_round_trip_with_two_threads() {
    let Some(xz) = need("xz", "xz-utils") else {
        return;
    };
    let test = TempDir::new("xz");
    // Its tables are read at random all the time, which is the worst that can happen to swap: larger presets take very long.
    let preset = sized("-1", "-6");
    let program = Launch::new(&test, &xz)
        .args([preset, "-T2", "--block-size=8MiB", "-k", "-f", "input"])
        .time_limit(sized(FIVE_MINUTES, 12 * FIVE_MINUTES));
    let (input, packed) = (program.work().join("input"), program.work().join("input.xz"));
    write_prose(&input, 16 * MIB);
    let expected = program.work().join("expected.xz");
    compare(&program, Share::Half, |recorded, _| {
        if recorded.is_none() {
            std::fs::rename(&packed, &expected).expect("rename inside one directory");
        } else {
            assert!(same_content(&packed, &expected), "the compressed file differs");
        }
    });
    let unpack = Launch::new(&test, xz).args(["-dc", "-T2", "expected.xz"]).time_limit(FIVE_MINUTES);
    for _ in 0..repeat() {
        let unpacked = unpack.under(&Budget::mib(sized(16, 48))).finish();
        unpacked.assert_success();
        assert!(unpacked.stdout == std::fs::read(&input).expect("the input"), "the round trip changed the file");
    }
}

/// Text that compresses about four to one.
fn write_prose(path: &Path, bytes: u64) {
    let words = "page slot cluster reclaim fault frame budget zswap area entry cache memory window";
    let words: Vec<&str> = words.split(' ').collect();
    let mut random = Random::new(5);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).expect("a writable directory"));
    let mut written = 0;
    while written < bytes {
        let number = random.word();
        let word = words[number as usize % words.len()];
        let line = format!("{} {word} {:x} row-{}\n", written / 31, number >> 40, number % 1000);
        file.write_all(line.as_bytes()).expect("space for the input");
        written += line.len() as u64;
    }
    file.flush().expect("space for the input");
}

#[test]
fn allocating_threads_under_glibc_malloc() {
    let test = TempDir::new("malloc");
    let program = Launch::new(&test, c_program("allocate")).arg(sized("60000", "120000"));
    compare(&program, Share::Half, |_, _| {});
}

#[test]
fn allocating_threads_under_preloaded_jemalloc() {
    let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]
        .map(|place| PathBuf::from(place).join("libjemalloc.so.2"))
        .into_iter()
        .find(|path| path.exists());
    let Some(library) = library else {
        need("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "libjemalloc2");
        return;
    };
    let test = TempDir::new("jemalloc");
    let program = Launch::new(&test, c_program("allocate")).arg(sized("60000", "120000")).env("LD_PRELOAD", library);
    compare(&program, Share::Half, |_, _| {});
}

#[test]
fn copy_on_write_through_three_generations() {
    let test = TempDir::new("generations");
    let program = Launch::new(&test, c_program("processes"))
        .arg("fork-generations")
        .env("USWAP_E2E_GENERATIONS_MIB", sized("64", "200"))
        .time_limit(FIVE_MINUTES);
    compare(&program, Share::Half, |_, _| {});
}

// --- redis ---

/// Keys as redis-benchmark names them, so that it overwrites ours.
fn keys() -> u64 {
    sized(350_000, 1_400_000)
}

struct Redis {
    server: Running,
    socket: PathBuf,
}

impl Redis {
    fn arguments(launch: Launch, socket: &Path, file: &str) -> Launch {
        launch
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes"])
            .args(["--rdbcompression", "no", "--dbfilename", file, "--unixsocket"])
            .arg(socket)
    }

    fn ready(server: Running, socket: PathBuf) -> Redis {
        let mut redis = Redis { server, socket };
        let begun = Instant::now();
        while redis.ask(&["ping"]) != "PONG" {
            if begun.elapsed() > Duration::from_secs(120) || !redis.server.is_running() {
                redis.server.give_up("redis-server does not answer");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        redis
    }

    fn ask(&self, words: &[&str]) -> String {
        let answer = tool(Command::new("redis-cli").arg("-s").arg(&self.socket).args(words));
        String::from_utf8_lossy(&answer.stdout).trim().to_owned()
    }

    fn info(&self, section: &str, key: &str) -> String {
        let info = self.ask(&["info", section]);
        let line = info.lines().find_map(|line| line.trim().strip_prefix(&format!("{key}:")).map(str::to_owned));
        line.unwrap_or_else(|| panic!("no {key} in\n{info}"))
    }

    /// Fails with what the server says and does, where a client alone would only see a closed connection.
    fn must(&mut self, holds: bool, why: &str) {
        if !holds {
            let state = if self.server.is_running() { "running" } else { "gone" };
            self.server.give_up(&format!("{why}; the server is {state}"));
        }
    }

    fn digest(&self) -> String {
        let digest = self.ask(&["debug", "digest"]);
        assert_eq!(digest.len(), 40, "DEBUG DIGEST says {digest}");
        digest
    }

    fn stop(self) -> uswap_e2e::Finished {
        self.ask(&["shutdown", "nosave"]);
        let finished = self.server.finish();
        finished.assert_success();
        finished
    }
}

fn write_commands(path: &Path) {
    let mut random = Random::new(11);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).expect("a writable directory"));
    for number in 0..keys() {
        let (a, b) = (random.word(), random.word());
        let value = format!("{a:016x}{b:016x}{a:016x}{number:016}{b:016x}{:016x}", a ^ b).repeat(2);
        write!(file, "*3\r\n$3\r\nSET\r\n$16\r\nkey:{number:012}\r\n${}\r\n{value}\r\n", value.len())
            .expect("space for the commands");
    }
    file.flush().expect("space for the commands");
}

/// Loads the data and plays the whole scene; returns the digest after loading, which is always the same.
fn play_redis(test: &TempDir, commands: &Path, server: Running, socket: PathBuf) -> (String, uswap_e2e::Finished) {
    let mut redis = Redis::ready(server, socket);
    let input = File::open(commands).expect("the commands");
    let loaded = tool(Command::new("redis-cli").arg("-s").arg(&redis.socket).arg("--pipe").stdin(input));
    let loaded = String::from_utf8_lossy(&loaded.stdout).into_owned();
    redis.must(loaded.contains(&format!("errors: 0, replies: {}", keys())), &format!("redis-cli --pipe says {loaded}"));
    let used: u64 = redis.info("memory", "used_memory").parse().expect("a number");
    assert!(used >= sized(100, 400) * MIB, "only {} MiB loaded", used / MIB);
    let digest = redis.digest();

    // Overwrite while the snapshot is written.
    redis.ask(&["bgsave"]);
    let benchmark = tool(Command::new("redis-benchmark").arg("-s").arg(&redis.socket).args([
        "-n",
        sized("100000", "300000"),
        "-r",
        &keys().to_string(),
        "-d",
        "192",
        "-c",
        "20",
        "-P",
        "16",
        "-t",
        "set,get",
        "-q",
    ]));
    redis.must(benchmark.status.success(), &String::from_utf8_lossy(&benchmark.stderr));
    let begun = Instant::now();
    while redis.info("persistence", "rdb_bgsave_in_progress") == "1" {
        assert!(begun.elapsed() < Duration::from_secs(200), "BGSAVE does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(redis.info("persistence", "rdb_last_bgsave_status"), "ok");
    assert_eq!(redis.ask(&["dbsize"]), keys().to_string());

    // The snapshot is what the data was when the child was forked.
    let snapshot = test.join("work/snapshot.rdb");
    std::fs::rename(test.join("work/dump.rdb"), &snapshot).expect("the snapshot");
    let reader_socket = test.join("reader.sock");
    let reader = Launch::new(test, "redis-server");
    let reader = Redis::arguments(reader, &reader_socket, "snapshot.rdb").time_limit(FIVE_MINUTES).bare();
    let reader = Redis::ready(reader, reader_socket);
    assert_eq!(reader.digest(), digest, "the snapshot differs from the data at the time of BGSAVE");
    reader.stop();

    // Written to a file and read back, the data is the same.
    let before = redis.digest();
    assert_ne!(before, digest, "nothing was overwritten");
    assert_eq!(redis.ask(&["debug", "reload"]), "OK");
    assert_eq!(redis.digest(), before, "DEBUG RELOAD changed the data");
    (digest, redis.stop())
}

#[test]
fn redis_overwritten_during_bgsave() {
    let (Some(server), Some(_)) = (need("redis-server", "redis-server"), need("redis-benchmark", "redis-tools")) else {
        return;
    };
    let test = TempDir::new("redis");
    let socket = test.join("redis.sock");
    let commands = test.join("commands");
    write_commands(&commands);
    let program = Redis::arguments(Launch::new(&test, server), &socket, "dump.rdb").time_limit(FIVE_MINUTES);
    let (digest, recorded) = play_redis(&test, &commands, program.bare(), socket.clone());
    let peak = recorded.samples.peak_proportional;
    for run in 1..=repeat() {
        let running = program.under(&Budget::bytes(peak / 2));
        let (again, finished) = play_redis(&test, &commands, running, socket.clone());
        eprintln!(
            "run {run}: {:.1?} in {} MiB; without uswap {:.1?} in {} MiB",
            finished.wall,
            peak / 2 / MIB,
            recorded.wall,
            peak / MIB
        );
        assert_eq!(again, digest, "DEBUG DIGEST after loading, run {run}");
        finished.assert_swapped();
    }
}
