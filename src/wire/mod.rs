//! Packets as bytes. Pure: views over frames, their checksums, their rewriting.
