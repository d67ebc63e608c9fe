#!/usr/bin/python3
"""Job control of `uswap run` on a real terminal, against the same without uswap.

    terminal.py USWAP [CASE...]         exit status 0: each case goes as it does without uswap

Each case starts an interactive bash on a pseudo-terminal of its own, types, and waits for what is to come (no fixed times but
where nothing can be waited for). What it answers must be the same with `uswap run -q -m 64M --` in front of the program.
"""
import contextlib, fcntl, os, pty, re, select, signal, struct, subprocess, sys, termios, time

PATIENCE = 15.0


class Terminal:
    """A shell with job control, or another program, as the leader of the session of a terminal."""

    def __init__(self, command=("/bin/bash", "--norc", "--noprofile", "-i")):
        environment = {"PATH": os.environ["PATH"], "TERM": "xterm", "PS1": "READY> ", "HOME": "/nonexistent", "LANG": "C.UTF-8",
                       "HISTFILE": "/dev/null"}
        self.unread, self.leader = b"", None
        self.leader, self.fd = pty.fork()
        if self.leader == 0:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(command[0], list(command), environment)
        self.resize(24, 80)
        self.shell = command[0].endswith("bash")
        if self.shell:
            assert self.sees("READY> "), "no shell"

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def types(self, text):
        os.write(self.fd, text.encode())

    def read(self, seconds):
        if not select.select([self.fd], [], [], max(0, seconds))[0]:
            return True
        try:
            new = os.read(self.fd, 1 << 16)
        except OSError:
            return False
        self.unread += new
        return bool(new)

    def sees(self, pattern, seconds=PATIENCE):
        """Whether the pattern comes; what comes before it is passed over."""
        until, pattern = time.monotonic() + seconds, re.compile(pattern.encode(), re.S)
        while True:
            found = pattern.search(self.unread)
            if found:
                self.unread = self.unread[found.end():]
                return True
            left = until - time.monotonic()
            if left <= 0 or not self.read(left):
                return False

    def settles(self, seconds=0.3):
        """Until nothing has come for so long."""
        while True:
            before = len(self.unread)
            if not self.read(seconds) or len(self.unread) == before:
                return

    def asks(self, command):
        """What the shell answers."""
        self.settles(0.1)
        self.unread = b""
        self.types(f"{command}; echo 'E''ND'\n")
        until = time.monotonic() + PATIENCE
        while b"END\r" not in self.unread and time.monotonic() < until and self.read(0.2):
            pass
        text = re.sub(r"\x1b\[\?2004[hl]", "", self.unread.decode(errors="replace")).replace("\r", "")
        self.unread = b""
        return "\n".join(line for line in text.split("\n")[1:] if not line.startswith(("READY>", "END"))).strip()

    def status(self):
        return self.asks("echo $?")

    def stops(self):
        """Ctrl-Z, and the shell is back and knows of the job."""
        self.types("\x1a")
        return self.sees(r"\[1\]\+  Stopped.*READY> ") and self.states() == {"T"}

    def states(self):
        """Of the processes on this terminal but the shell; those that are in the middle of something are waited for."""
        wanted = time.monotonic() + PATIENCE
        while True:
            rows = subprocess.run(["ps", "-e", "-o", "sid=,pid=,stat="], capture_output=True, text=True).stdout.split("\n")
            rows = [row.split() for row in rows if row.strip()]
            states = {stat[0] for sid, pid, stat in rows if int(sid) == self.leader and int(pid) != self.leader}
            if len(states) <= 1 or time.monotonic() > wanted:
                return states
            time.sleep(0.02)

    def becomes(self, word, state):
        """Whether the shell comes to call its job so, and all of its processes have this state."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if word in self.asks("jobs") and self.states() == set(state):
                return True
            time.sleep(0.05)
        return False

    def left_behind(self):
        """Closes the terminal, as a window is closed, and waits for all of its session; who stays is ended, and named."""
        os.close(self.fd)
        until = time.monotonic() + 5
        while True:
            rows = subprocess.run(["ps", "-e", "-o", "sid=,pid=,stat=,comm="], capture_output=True, text=True).stdout.split("\n")
            rows = [row.split(None, 3) for row in rows if row.strip()]
            there = [(int(pid), name) for sid, pid, stat, name in rows if int(sid) == self.leader and stat[0] != "Z"]
            if not there or time.monotonic() > until:
                break
            time.sleep(0.05)
        for pid, _ in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.waitpid(self.leader, 0)
        return [name for _, name in there]


CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def stop_and_go_on(command, shows, ends, times=3):
    t = Terminal()
    t.types(command + "\n")
    went = [t.sees(shows) if shows else t.settles() is None]
    for _ in range(times):
        t.settles()
        went.append(t.stops())
        t.types("fg\n")
        went.append(t.sees(shows or re.escape(command)))
    t.settles()
    t.types(ends)
    went.append(t.sees("READY> "))
    return went, t.status(), t.asks("stty -a | grep -oE -- '-?(icanon|isig|echo) '"), t.left_behind()


@case
def top_which_stops_itself(uswap):
    return stop_and_go_on(f"{uswap} top -d 1", "load average", "q")


@case
def cat(uswap):
    return stop_and_go_on(f"{uswap} cat", "", "\x04")


@case
def top_below_a_shell(uswap):
    # Without uswap the shell and top would race for the terminal after fg: so this looks at the stop alone.
    t = Terminal()
    t.types(f"{uswap} sh -c 'top -d 1; exit 4'\n")
    went = [t.sees("load average")]
    t.settles()
    went.append(t.stops())
    return went, t.left_behind()


@case
def timeout_outside(uswap):
    return stop_and_go_on(f"timeout 60 {uswap} cat", "", "\x04")


@case
def timeout_outside_runs_out(uswap):
    t = Terminal()
    t.types(f"timeout 6 {uswap} top -d 1\n")
    return t.sees("load average"), t.sees("READY> "), t.status(), t.left_behind()


def key(uswap, program, typed):
    t = Terminal()
    t.types(f"{uswap} {program}\n")
    t.sees("BEGUN\r")
    t.settles()
    t.types(typed)
    return t.sees("READY> "), t.status(), t.left_behind()


@case
def ctrl_c(uswap):
    return key(uswap, "sh -c 'echo BEG''UN; exec sleep 60'", "\x03")


@case
def ctrl_backslash(uswap):
    return key(uswap, "sh -c 'ulimit -c 0; echo BEG''UN; exec sleep 60'", "\x1c")


@case
def ctrl_c_is_handled(uswap):
    return key(uswap, "bash -c 'trap \"exit 7\" INT; echo BEG''UN; sleep 60 & wait'", "\x03")


@case
def ctrl_c_with_timeout_inside(uswap):
    return key(uswap, "timeout 60 sh -c 'echo BEG''UN; exec sleep 60'", "\x03")


@case
def the_window_changes_its_size(uswap):
    t = Terminal()
    t.types(f"{uswap} bash -c 'trap \"n=\\$((n+1)); stty size\" WINCH; echo BEG''UN; for i in $(seq 20); do sleep 0.1; done; echo N=$n.'\n")
    went = [t.sees("BEGUN\r")]
    t.settles()
    t.resize(30, 100)
    return went, t.sees("30 100\r"), t.sees(r"N=1\."), t.left_behind()


def stops_in_the_background(t, command):
    t.types(f"{command} &\n")
    t.sees("READY> ")
    return t.becomes("Stopped", "T")


@case
def output_in_the_background_with_tostop(uswap):
    t = Terminal()
    t.asks("stty tostop")
    went = [stops_in_the_background(t, f"{uswap} sh -c 'echo O''UT; echo O''UT2; exit 3'")]
    t.types("fg\n")
    return went, t.sees("OUT\r.*OUT2\r"), t.sees("READY> "), t.status(), t.left_behind()


@case
def input_in_the_background(uswap):
    t = Terminal()
    went = [stops_in_the_background(t, f"{uswap} cat")]
    t.types("fg\n")
    t.sees("cat\r")
    t.types("hello\n")
    went.append(t.sees("hello\r\nhello\r"))
    t.types("\x04")
    return went, t.sees("READY> "), t.status(), t.left_behind()


@case
def background_and_foreground(uswap):
    t = Terminal()
    t.types(f"{uswap} sh -c 'for i in $(seq 12); do echo L$i.; sleep 0.4; done; exit 5'\n")
    went = [t.sees("L1\\.\r")]
    # Not between vfork and exec of the next `sleep`: whom a key stops there holds up its shell, with uswap or without.
    time.sleep(0.2)
    went.append(t.stops())
    t.types("bg\n")
    went.append(t.sees("L4\\.\r"))
    t.types("\nfg\n")
    return went, t.sees("L12\\.\r"), t.sees("READY> "), t.status(), t.left_behind()


@case
def a_pipeline(uswap):
    t = Terminal()
    t.types(f"seq 100000 | {uswap} sh -c 'echo BEG''UN >&2; sleep 3; cat' | tail -1\n")
    went = [t.sees("BEGUN\r")]
    # Not between vfork and exec, as above.
    time.sleep(0.5)
    went.append(t.stops())
    t.types("fg\n")
    return went, t.sees("100000\r"), t.sees("READY> "), t.asks("echo ${PIPESTATUS[@]}"), t.left_behind()


@case
def a_shell_with_job_control_inside(uswap):
    t = Terminal()
    t.types(f"{uswap} bash --norc --noprofile -i\n")
    # Its own prompt, of which nothing is known.
    t.sees("-i\r\n.*[#$>] $")
    went = []
    t.types("PS1='INNER> '\n")
    t.sees("\nINNER> |INNER> $")
    t.types("bash -c 'echo BEG''UN; exec sleep 60'\n")
    went.append(t.sees("BEGUN\r"))
    t.settles()
    t.types("\x1a")
    went.append(t.sees("Stopped.*INNER> "))
    t.types("fg\n")
    t.sees("sleep 60")
    t.settles()
    t.types("\x03")
    went.append(t.sees("INNER> "))
    t.types("exit 5\n")
    return went, t.sees("READY> "), t.status(), t.left_behind()


@case
def jobs_by_kill(uswap):
    t = Terminal()
    t.types(f"{uswap} sleep 60 &\n")
    t.sees("READY> ")
    went = [t.becomes("Running", "S")]
    for stop in ("STOP", "TSTP"):
        t.asks(f"kill -{stop} %1")
        went.append(t.becomes("Stopped", "T"))
        t.asks("kill -CONT %1")
        went.append(t.becomes("Running", "S"))
    t.asks("kill %1")
    return went, t.asks("wait $! 2>/dev/null; echo $?").split()[-1:], t.left_behind()


@case
def closed_while_it_runs(uswap):
    t = Terminal()
    t.types(f"{uswap} sleep 60\n")
    t.settles(1)
    return t.left_behind()


@case
def closed_while_it_is_stopped(uswap):
    t = Terminal()
    t.types(f"{uswap} timeout 60 sleep 60\n")
    t.settles(1)
    return t.stops(), t.left_behind()


@case
def the_leader_of_a_session(uswap):
    """As of `ssh -t` and `xterm -e`: who could continue it is not there, so Ctrl-Z does nothing."""
    t = Terminal((uswap + " sh -c").split() + ["echo BEGUN; read x; echo GOT $x; sleep 60"])
    went = [t.sees("BEGUN\r")]
    t.types("\x1a")
    time.sleep(0.5)
    t.types("abc\n")
    return went, t.sees("GOT abc\r"), t.left_behind()


@case
def a_program_that_stops_itself_by_sigstop(uswap):
    t = Terminal()
    t.types(f"{uswap} sh -c 'echo BEG''UN; kill -STOP $$; echo AGA''IN; exit 3'\n")
    went = [t.sees("BEGUN\r"), t.sees(r"\[1\]\+  Stopped.*READY> ")]
    if not went[1]:
        return went, t.left_behind()
    t.types("fg\n")
    return went, t.sees("AGAIN\r"), t.sees("READY> "), t.status(), t.left_behind()


@case
def suspend_of_a_shell(uswap):
    t = Terminal()
    t.types(f"{uswap} bash --norc --noprofile -i\n")
    t.settles(1)
    t.types("suspend\n")
    went = [t.sees(r"\[1\]\+  Stopped.*READY> ")]
    if went[0]:
        t.types("fg\n")
        t.settles()
        t.types("exit 4\n")
        went += [t.sees("READY> "), t.status()]
    return went, t.left_behind()


def all_of(answers):
    for answer in answers:
        yield from all_of(answer) if isinstance(answer, (tuple, list)) else [answer]


def goes(name, uswap):
    """What is wrong, if anything: what is asked for must come without uswap, and go the same way with it."""
    without, with_it = CASES[name]("env"), CASES[name](f"{uswap} run -q -m 64M --")
    if False in all_of(without):
        return f"does not go without uswap: {without}"
    return "" if without == with_it else f"DIFFERS\n  without {without}\n  with    {with_it}"


def main():
    uswap, names = sys.argv[1], sys.argv[2:] or list(CASES)
    failed = 0
    for name in names:
        # A machine that is busy with something else may be too slow once.
        wrong = goes(name, uswap) and goes(name, uswap)
        failed += bool(wrong)
        print(f"{name}: {wrong or 'ok'}", flush=True)
    sys.exit(1 if failed else 0)


main()
