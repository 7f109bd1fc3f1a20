//! The shipped program contains no crash points.

use consul_semaphore_operator::crash::Point;

/// The names are in the program if and only if it was built with crash points.
#[test]
fn a_normal_build_has_no_crash_points() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_consul-semaphore-operator")).unwrap();
    // The standard library's text search is fast even without optimization.
    let program = String::from_utf8_lossy(&program);
    let has = |text: &str| program.contains(text);
    assert!(has("CONSUL_HTTP_ADDR"), "texts can be found in it");
    let armed = cfg!(feature = "crash-points");
    assert_eq!(has("CRASH_POINTS"), armed);
    // Short words can occur by chance.
    for point in Point::ALL.iter().filter(|point| point.name().contains('-')) {
        assert_eq!(has(point.name()), armed, "{}", point.name());
    }
}
