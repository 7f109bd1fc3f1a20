//! Property tests of whole passes.
