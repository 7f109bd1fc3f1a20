//! Waits at the points that `CRASH_POINTS` arms, and then kills, stops, ends or panics.

use std::{fmt, sync::LazyLock, time::Duration};

use parking_lot::Mutex;

use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::watch;

use super::Point;

/// Name of the variable that arms points.
const VARIABLE: &str = "CRASH_POINTS";

/// Time that is far longer than a signal to this process takes to arrive.
const ARRIVAL: Duration = Duration::from_millis(200);

static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
    let text = std::env::var(VARIABLE).ok()?;
    match parse(&text) {
        Ok((end, places)) => Some(Armed {
            end,
            places: Mutex::new(places),
            past: watch::Sender::new(false),
        }),
        Err(error) => {
            tracing::error!("{VARIABLE}: {error}: no point is armed");
            None
        }
    }
});

/// The action when work waits at all armed points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrashAction {
    Signal(Signal),
    Panic,
}

/// The armed points, and the action when work waits at all of them.
struct Armed {
    end: CrashAction,
    /// Points that have not been reached yet.
    places: Mutex<Vec<ArmedPoint>>,
    /// Whether the action has happened.
    past: watch::Sender<bool>,
}

/// An armed point.
#[derive(Debug, PartialEq, Eq)]
struct ArmedPoint {
    point: Point,
    namespace: String,
    /// Number of visits that pass before work waits here.
    passed: usize,
}

/// Waits if this point is armed for this namespace. The work calls it whenever it gets to the point.
pub(crate) async fn reach(point: Point, namespace: &str) {
    let Some(armed) = ARMED.as_ref() else { return };
    if !armed.take(point, namespace) {
        return;
    }
    if armed.is_last() {
        tracing::info!("all crash points are reached");
        armed.end.happen();
        // The signal is sent to the whole process, so this thread could run on for a moment.
        std::thread::sleep(ARRIVAL);
        armed.past.send_replace(true);
    }
    // The sender is a static, so it is never dropped.
    let _ = armed.past.subscribe().wait_for(|past| *past).await;
}

impl CrashAction {
    #[expect(clippy::panic, reason = "it is asked for")]
    fn happen(self) {
        match self {
            Self::Signal(signal) => {
                // An error would mean that this process does not exist.
                let _ = kill_process(getpid(), signal);
            }
            Self::Panic => panic!("{VARIABLE} asks for it"),
        }
    }
}

impl Armed {
    /// Takes the place of this point, if work has to wait there. Returns whether it has to.
    fn take(&self, point: Point, namespace: &str) -> bool {
        let mut places = self.places.lock();
        let here = |place: &ArmedPoint| place.point == point && place.namespace == namespace;
        let Some(position) = places.iter().position(here) else {
            return false;
        };
        if let Some(left) = places[position].passed.checked_sub(1) {
            places[position].passed = left;
            return false;
        }
        // This is logged before the place is taken, because the process ends once the last one is taken.
        tracing::info!(?point, namespace, "got to a crash point");
        places.remove(position);
        true
    }

    fn is_last(&self) -> bool {
        let places = self.places.lock();
        places.is_empty()
    }
}

impl fmt::Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn parse(text: &str) -> Result<(CrashAction, Vec<ArmedPoint>), String> {
    let mut words = text.split_whitespace();
    let end = match words.next() {
        Some("kill") => CrashAction::Signal(Signal::KILL),
        Some("stop") => CrashAction::Signal(Signal::STOP),
        Some("end") => CrashAction::Signal(Signal::TERM),
        Some("panic") => CrashAction::Panic,
        other => {
            return Err(format!(
                "it starts with kill, stop, end or panic, not {other:?}"
            ));
        }
    };
    let places: Vec<ArmedPoint> = words.map(parse_place).collect::<Result<_, _>>()?;
    if places.is_empty() {
        return Err("it names no point".into());
    }
    Ok((end, places))
}

fn parse_place(word: &str) -> Result<ArmedPoint, String> {
    let (place, time) = word.split_once('#').unwrap_or((word, "1"));
    let (name, namespace) = place.split_once('@').unwrap_or((place, ""));
    let mut points = Point::ALL.iter();
    let point = points.find(|point| point.name() == name);
    let time: usize = time.parse().map_err(|error| format!("{word}: {error}"))?;
    Ok(ArmedPoint {
        point: *point.ok_or_else(|| format!("{word}: there is no such point"))?,
        namespace: namespace.to_owned(),
        passed: time.checked_sub(1).ok_or("the first time is #1")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(point: Point, namespace: &str, passed: usize) -> ArmedPoint {
        let namespace = namespace.to_owned();
        ArmedPoint {
            point,
            namespace,
            passed,
        }
    }

    #[test]
    fn the_variable_is_read() {
        let (end, places) = parse("kill granted@a released@b#2 node-registered").unwrap();
        assert_eq!(end, CrashAction::Signal(Signal::KILL));
        assert_eq!(
            places,
            [
                place(Point::Granted, "a", 0),
                place(Point::Released, "b", 1),
                place(Point::NodeRegistered, "", 0),
            ]
        );
        for wrong in [
            "",
            "kill",
            "halt granted",
            "stop gone@a",
            "stop granted@a#0",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_named_time_counts_and_only_once() {
        let armed = Armed {
            end: CrashAction::Panic,
            places: Mutex::new(vec![place(Point::Granted, "a", 1)]),
            past: watch::Sender::new(false),
        };
        let steps = [
            (Point::Granted, "b"),
            (Point::Released, "a"),
            (Point::Granted, "a"),
            (Point::Granted, "a"),
            (Point::Granted, "a"),
        ];
        let taken = steps.map(|(point, namespace)| armed.take(point, namespace));
        assert_eq!(taken, [false, false, false, true, false]);
        assert!(armed.is_last());
    }
}
