//! A terminal, as a program sees it.

use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::Stdio,
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

/// A pseudo-terminal: the output so far, and the program's end.
pub(crate) struct Terminal {
    written: Arc<Mutex<Vec<u8>>>,
    program: File,
    ours: OwnedFd,
    reader: JoinHandle<()>,
}

impl Terminal {
    pub(crate) fn open(columns: u16, rows: u16) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).expect("it is ours");
        unlockpt(&ours).expect("it can be opened");
        let name = ptsname(&ours, Vec::new()).expect("its name");
        let name = name.into_string().expect("UTF-8");
        let program = OpenOptions::new()
            .read(true)
            .write(true)
            .open(name)
            .expect("its other end");
        let written = Arc::new(Mutex::new(Vec::new()));
        let mut reader = File::from(ours.try_clone().expect("another handle"));
        let into = written.clone();
        // It ends when the last program has closed the terminal.
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                into.lock().extend_from_slice(&buffer[..read]);
            }
        });
        let terminal = Self {
            written,
            program,
            ours,
            reader,
        };
        terminal.resize(columns, rows);
        terminal
    }

    /// The program's end.
    pub(crate) fn end(&self) -> Stdio {
        self.program.try_clone().expect("another handle").into()
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.ours, size).expect("it has a size");
    }

    /// Types these keys.
    pub(crate) fn types(&self, keys: &str) {
        let mut ours = File::from(self.ours.try_clone().expect("another handle"));
        ours.write_all(keys.as_bytes()).expect("it takes them");
    }

    /// The output so far. What a program has just written may still be missing.
    pub(crate) fn text(&self) -> String {
        as_text(&self.written)
    }

    /// The whole output, once nothing has the terminal open any more: neither the programs, nor a `Command` that
    /// could start another one.
    pub(crate) fn close(self) -> String {
        drop(self.program);
        self.reader.join().expect("no panic");
        as_text(&self.written)
    }

    /// The complete frames so far, without their escape sequences at both ends.
    pub(crate) fn frames(&self) -> Vec<String> {
        let text = self.text();
        let frames = text.split("\u{1b}[?2026h").skip(1);
        let whole =
            frames.filter_map(|frame| Some(frame.split_once("\u{1b}[?2026l")?.0.to_owned()));
        whole.collect()
    }
}

fn as_text(written: &Mutex<Vec<u8>>) -> String {
    String::from_utf8_lossy(&written.lock()).into_owned()
}
