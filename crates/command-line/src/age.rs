//! Writes durations as kubectl writes them.

use jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Returns how long ago the time `since` was; `-` if it is unknown. The clocks of two machines may differ, so a time
/// in the future counts as the present.
pub fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map_or_else(|| "-".to_owned(), |since| seconds(now, since))
}

/// Returns the duration from `now` to `then`.
pub fn until(then: Timestamp, now: Timestamp) -> String {
    seconds(then, now)
}

fn seconds(later: Timestamp, earlier: Timestamp) -> String {
    short(later.as_second().saturating_sub(earlier.as_second()).max(0))
}

/// Writes at most two units, because a small unit says little next to a large one.
fn short(seconds: i64) -> String {
    let two = |large: i64, name: char, small: i64, small_name: char| {
        let rest = (seconds % large) / small;
        let whole = seconds / large;
        if rest == 0 {
            format!("{whole}{name}")
        } else {
            format!("{whole}{name}{rest}{small_name}")
        }
    };
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => two(MINUTE, 'm', 1, 's'),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(HOUR, 'h', MINUTE, 'm'),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(DAY, 'd', HOUR, 'h'),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => two(YEAR, 'y', DAY, 'd'),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_as_kubectl_does() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (600, "10m"),
            (10_799, "179m"),
            (3 * HOUR + 5 * MINUTE, "3h5m"),
            (8 * HOUR, "8h"),
            (2 * DAY, "2d"),
            (2 * DAY + 3 * HOUR, "2d3h"),
            (9 * DAY, "9d"),
            (2 * YEAR + 30 * DAY, "2y30d"),
            (9 * YEAR, "9y"),
        ] {
            assert_eq!(short(seconds), expected);
        }
    }

    #[test]
    fn what_is_unknown_or_yet_to_come_is_no_length() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(age(None, at(0)), "-");
        assert_eq!(age(Some(at(10)), at(0)), "0s");
        assert_eq!(age(Some(at(10)), at(15)), "5s");
        assert_eq!(until(at(15), at(10)), "5s");
    }
}
