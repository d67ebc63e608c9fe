//! What uswap costs a program that does not need it: start-up, time, memory.
//!
//! Runs with and without uswap alternate, so that whatever else the machine does meets both. Medians are printed,
//! and between them the middle half of the paired differences.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::build_uswap;

const STARTS: usize = 100;
const LONG_RUNS: usize = 15;
const SETTLED: Duration = Duration::from_millis(700);

/// Prints the three figures.
pub fn measure() -> Result<(), String> {
    let binary = match std::env::var_os("USWAP_BIN") {
        Some(given) => given.into(),
        None => build_uswap()?,
    };
    let python = python()?;
    println!();

    let starts = pairs(STARTS, &binary, &[&python, "-c", "pass"])?;
    report("start-up of `python3 -c pass`", &starts, 1e3, "ms");

    let work = "n=0\nfor i in range(24_000_000): n+=i*i%7\nprint(n)";
    let long = pairs(LONG_RUNS, &binary, &[&python, "-c", work])?;
    report("a CPU-bound program of about 2 s", &long, 1.0, "s");
    let ratio = median(long.iter().map(|pair| pair.under / pair.bare).collect());
    println!("  ratio {:.4}, the median of {LONG_RUNS} pairs", ratio);

    let sleeping = "import time; block=bytearray(64<<20); block[::4096]=b'x'*(len(block)//4096); time.sleep(30)";
    let (mut shared_once, mut each_for_itself) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let bare = resident_kib(&mut command(None, &[&python, "-c", sleeping]))?;
        let under = resident_kib(&mut command(Some(&binary), &[&python, "-c", sleeping]))?;
        shared_once.push(Pair { bare: bare.pss, under: under.pss });
        each_for_itself.push(Pair { bare: bare.rss, under: under.rss });
    }
    let scale = 1.0 / 1024.0;
    report("resident memory of the tree (Pss: what processes share counts once)", &shared_once, scale, "MiB");
    report("the same, shared pages counted in each process (Rss)", &each_for_itself, scale, "MiB");
    Ok(())
}

fn python() -> Result<String, String> {
    // A version manager may have put a slow script under this name.
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let output = output.map_err(|error| format!("python3: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[derive(Clone, Copy)]
struct Pair {
    bare: f64,
    under: f64,
}

fn command(uswap: Option<&Path>, words: &[&str]) -> Command {
    let mut command = match uswap {
        None => Command::new(words[0]),
        Some(uswap) => {
            let mut command = Command::new(uswap);
            command.args(["run", "-q", "--memory", "1G", "--"]).arg(words[0]);
            command
        }
    };
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn pairs(count: usize, uswap: &Path, words: &[&str]) -> Result<Vec<Pair>, String> {
    let mut pairs = Vec::with_capacity(count);
    for round in 0..count + 1 {
        let (bare, under) = if round % 2 == 0 {
            let bare = seconds(&mut command(None, words))?;
            (bare, seconds(&mut command(Some(uswap), words))?)
        } else {
            let under = seconds(&mut command(Some(uswap), words))?;
            (seconds(&mut command(None, words))?, under)
        };
        // The first pair warms the caches.
        if round > 0 {
            pairs.push(Pair { bare, under });
        }
    }
    Ok(pairs)
}

fn seconds(command: &mut Command) -> Result<f64, String> {
    let begun = Instant::now();
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    let seconds = begun.elapsed().as_secs_f64();
    if status.success() { Ok(seconds) } else { Err(format!("{command:?} ended with {status}")) }
}

/// Resident memory of a tree, in KiB.
#[derive(Default)]
struct Resident {
    rss: f64,
    pss: f64,
}

/// Starts a program that settles and sleeps, reads the memory of its tree, and kills it.
fn resident_kib(command: &mut Command) -> Result<Resident, String> {
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    std::thread::sleep(SETTLED);
    let mut todo = vec![child.id()];
    let mut members = Vec::new();
    while let Some(pid) = todo.pop() {
        members.push(pid);
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            todo.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    let mut total = Resident::default();
    // The anchor shares the supervisor's memory, which counts once.
    let shares =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "uswap-anchor\n");
    members.retain(|pid| !shares(pid));
    for pid in members {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let value = |name: &str| -> f64 {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0.0)
        };
        total.rss += value("Rss:");
        total.pss += value("Pss:");
    }
    let killed = child.kill();
    let waited = child.wait();
    killed.and(waited.map(drop)).map_err(|error| format!("{command:?}: {error}"))?;
    Ok(total)
}

fn median(mut values: Vec<f64>) -> f64 {
    quantile(&mut values, 0.5)
}

fn quantile(values: &mut [f64], at: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = at * (values.len() - 1) as f64;
    let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

fn report(what: &str, pairs: &[Pair], scale: f64, unit: &str) {
    let bare = median(pairs.iter().map(|pair| pair.bare * scale).collect());
    let under = median(pairs.iter().map(|pair| pair.under * scale).collect());
    let mut differences: Vec<f64> = pairs.iter().map(|pair| (pair.under - pair.bare) * scale).collect();
    let middle = quantile(&mut differences, 0.5);
    let (low, high) = (quantile(&mut differences, 0.25), quantile(&mut differences, 0.75));
    println!("{what}: {} pairs", pairs.len());
    println!(
        "  without {bare:.3} {unit}, with {under:.3} {unit}; difference {middle:+.3} {unit} ({low:+.3} to {high:+.3})"
    );
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let mut values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&mut values, 0.5), 2.5);
        assert_eq!(quantile(&mut values, 0.0), 1.0);
        assert_eq!(quantile(&mut values, 1.0), 4.0);
    }
}
