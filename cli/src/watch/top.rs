//! The command `top`: running processes in the terminal.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::{Event, KeyCode, KeyModifiers, poll, read};
use crossterm::{cursor, execute, queue, style, terminal};

use super::source;
use super::view::{Process, State, plain, render};

const EXITS: &str = "\
PATH is what stats_export names in the process that is looked at: a file or a Unix socket; %p in its name
stands for every process. Without one, the configuration of this environment says it.

Keys: q, Esc or Ctrl-C ends. Exit status: 0; with --once 1 where no statistics could be read; 2 an option was refused.";

/// Shows the memory of running processes that export their statistics.
#[derive(Debug, Args)]
#[command(after_help = EXITS)]
pub struct Top {
    /// Files or sockets
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Print once and end: for scripts, and where there is no terminal
    #[arg(long)]
    once: bool,

    /// Milliseconds between two looks
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=3_600_000))]
    every: u64,

    /// Columns to use; those of the terminal where it is not given, 120 where there is none
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    width: Option<u16>,
}

impl Top {
    /// Runs the command.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let result = source::named_or_configured(&self.paths)
            .and_then(|paths| if self.once { self.once(&paths) } else { self.live(&paths) });
        match result {
            Ok(code) => ExitCode::from(code),
            Err(reason) => {
                eprintln!("error: {reason}");
                ExitCode::from(2)
            }
        }
    }

    fn once(&self, paths: &[PathBuf]) -> Result<u8, String> {
        let mut watched = Watched::default();
        watched.look(paths);
        let processes = watched.processes();
        let width = self.width.map_or_else(|| usize::from(columns()), usize::from);
        let text = render(&processes, width, None).join("\n") + "\n";
        match io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.to_string()),
            _ => {}
        }
        Ok(u8::from(processes.iter().all(|process| process.now.is_none())))
    }

    fn live(&self, paths: &[PathBuf]) -> Result<u8, String> {
        if !io::stdout().is_terminal() {
            return Err("standard output is no terminal; --once prints the statistics and ends".to_owned());
        }
        let show = || -> io::Result<()> {
            let _screen = Screen::open()?;
            let mut watched = Watched::default();
            loop {
                watched.look(paths);
                let next = Instant::now() + Duration::from_millis(self.every);
                loop {
                    self.draw(&watched.processes())?;
                    match wait(next)? {
                        Wanted::End => return Ok(()),
                        Wanted::Drawing => {}
                        Wanted::Look => break,
                    }
                }
            }
        };
        show().map(|()| 0).map_err(|error| format!("the terminal cannot be used: {error}"))
    }

    fn draw(&self, processes: &[Process]) -> io::Result<()> {
        let (columns, rows) = terminal::size()?;
        let width = usize::from(self.width.unwrap_or(columns));
        let title = format!("ascend-alloc top   every {:.1} s   q ends", self.every as f64 / 1000.0);
        let title: String = title.chars().take(width).collect();
        let lines = render(processes, width, Some(usize::from(rows).saturating_sub(2)));
        let mut out = io::stdout().lock();
        queue!(
            out,
            cursor::MoveTo(0, 0),
            style::Print(&title),
            terminal::Clear(terminal::ClearType::UntilNewLine)
        )?;
        let blank = String::new();
        for (row, line) in
            (1..rows).zip(std::iter::once(&blank).chain(&lines).chain(std::iter::repeat(&blank)))
        {
            queue!(
                out,
                cursor::MoveTo(0, row),
                style::Print(line),
                terminal::Clear(terminal::ClearType::UntilNewLine)
            )?;
        }
        out.flush()
    }
}

/// Columns of the terminal, or 120 where there is none.
fn columns() -> u16 {
    if io::stdout().is_terminal() { terminal::size().map_or(120, |(columns, _)| columns) } else { 120 }
}

/// What is to be done next.
enum Wanted {
    End,
    Drawing,
    Look,
}

/// Waits for a key or for the time of the next look.
fn wait(next: Instant) -> io::Result<Wanted> {
    loop {
        let left = next.saturating_duration_since(Instant::now());
        if !poll(left)? {
            return Ok(Wanted::Look);
        }
        match read()? {
            Event::Key(key) if matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) => {
                return Ok(Wanted::End);
            }
            Event::Key(key)
                if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) =>
            {
                return Ok(Wanted::End);
            }
            Event::Resize(..) => return Ok(Wanted::Drawing),
            _ => {}
        }
    }
}

/// The terminal as this command needs it; as it was before, when dropped.
struct Screen;

impl Screen {
    fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Screen;
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is nobody to tell if that fails.
        let _ = execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// What is known of the processes, from look to look.
#[derive(Default)]
struct Watched {
    by_path: BTreeMap<PathBuf, Process>,
}

impl Watched {
    fn look(&mut self, paths: &[PathBuf]) {
        for path in source::expand(paths) {
            let process = self.by_path.entry(path.clone()).or_insert_with(|| Process {
                path: path.clone(),
                name: String::new(),
                state: State::Telling,
                now: None,
                before: None,
            });
            look_at(process, &path);
        }
        // Of a pattern, what is no longer there has ended; it stays as it was.
        for (path, process) in &mut self.by_path {
            if process.now.is_some() && !path.exists() {
                process.state = State::Ended;
            }
        }
    }

    fn processes(&self) -> Vec<Process> {
        self.by_path.values().cloned().collect()
    }
}

fn look_at(process: &mut Process, path: &Path) {
    let reading = match source::read(path) {
        Ok(reading) => reading,
        Err(reason) => {
            let ended = process.now.as_ref().is_some_and(|document| source::has_ended(document.process));
            process.state = if ended { State::Ended } else { State::Unreadable(reason) };
            return;
        }
    };
    let number = reading.document.process;
    process.state = if reading.is_fresh() {
        State::Telling
    } else if reading.is_left_behind() {
        State::Ended
    } else {
        State::Silent(reading.age)
    };
    let is_another = process.now.as_ref().is_some_and(|document| document.process != number);
    if process.name.is_empty() || is_another {
        let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
        process.name = plain(name.trim());
    }
    match &process.now {
        // Nothing new was said: the rates stay.
        Some(now) if now.sequence == reading.document.sequence && now.process == number => {}
        Some(now) if now.process != number => {
            process.before = None;
            process.now = Some(reading.document);
        }
        _ => process.before = process.now.replace(reading.document),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_behind_the_same_file_has_a_name_of_its_own() {
        let path = std::env::temp_dir().join(format!("ascend-alloc-top-{}.json", std::process::id()));
        let mut watched = Watched::default();
        let names = [std::process::id(), u32::MAX].map(|number| {
            let head = r#"{"format":"ascend-alloc statistics","version":1"#;
            fs::write(&path, format!("{head},\"process\":{number},\"sequence\":1,\"devices\":[]}}")).unwrap();
            watched.look(std::slice::from_ref(&path));
            watched.processes()[0].name.clone()
        });
        fs::remove_file(&path).unwrap();
        assert!(!names[0].is_empty());
        assert_eq!(names[1], "", "there is no such process, so its name is not known");
    }
}
