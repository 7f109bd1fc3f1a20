//! The output: to a terminal, with or without colour, or to something else.

use std::{
    env,
    fs::File,
    io::{self, IsTerminal as _, Write as _},
    os::fd::AsFd as _,
};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

pub(crate) use command_line::terminal::{colour, message, try_write};

use crate::{
    failure::Failure,
    view::{
        frame::{self, Size},
        text::Text,
    },
};

/// The size that is assumed for a terminal that does not report its own.
const DEFAULT_SIZE: Size = Size {
    columns: 80,
    rows: 24,
};

/// Whether a frame can overwrite the previous one.
pub(crate) fn has_screen() -> bool {
    let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    io::stdout().is_terminal() && !dumb
}

pub(crate) fn print(text: &Text) -> Result<(), Failure> {
    write(&text.render(colour()))
}

/// Writes to stdout. A reader that stops reading, as `head` does, is not a failure.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    let written = try_write(text);
    written
        .map(drop)
        .map_err(|error| Failure::impossible(format!("can't write to stdout: {error}")))
}

/// A separate screen on the terminal. When it is dropped, the previous content is restored.
pub(crate) struct Screen {
    /// The terminal, without a buffer, so that a frame is one write and appears at once.
    out: File,
    /// The terminal's previous settings.
    before: Option<Termios>,
    colour: bool,
    /// The current frame, with the size of the terminal when it was written. A resize may have moved everything.
    shown: Option<(Size, String)>,
}

impl Screen {
    pub(crate) fn open() -> io::Result<Self> {
        let out = io::stdout().as_fd().try_clone_to_owned()?;
        let before = tcgetattr(&out).ok();
        // The terminal must not echo what is typed meanwhile.
        if let Some(mut quiet) = before.clone() {
            quiet.local_modes.remove(LocalModes::ECHO);
            let _ = tcsetattr(&out, OptionalActions::Now, &quiet);
        }
        let mut screen = Self {
            out: File::from(out),
            before,
            colour: colour(),
            shown: None,
        };
        screen.out.write_all(frame::OPEN_SCREEN.as_bytes())?;
        Ok(screen)
    }

    /// Shows a text in place of the previous one. A frame that has not changed is not written again.
    pub(crate) fn draw(&mut self, text: &Text) -> io::Result<()> {
        let size = self.size();
        let next = Some((size, frame::frame(text, size, self.colour)));
        if self.shown != next
            && let Some((_, frame)) = &next
        {
            self.out.write_all(frame.as_bytes())?;
            self.shown = next;
        }
        Ok(())
    }

    fn size(&self) -> Size {
        match tcgetwinsize(&self.out) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Size {
                columns: size.ws_col.into(),
                rows: size.ws_row.into(),
            },
            _ => DEFAULT_SIZE,
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, nothing needs to be restored.
        let _ = self.out.write_all(frame::CLOSE_SCREEN.as_bytes());
        if let Some(before) = &self.before {
            let _ = tcsetattr(&self.out, OptionalActions::Flush, before);
        }
    }
}
