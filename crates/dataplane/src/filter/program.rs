//! An assembler for classic BPF.
//!
//! Its conditional jumps reach 255 instructions at most. Here each only goes a little ahead, and what goes further
//! is an unconditional jump, whose distance has 32 bits; so sets of any size need no care.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use libc::{
    BPF_ABS, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K,
    BPF_LD, BPF_LDX, BPF_MEM, BPF_MSH, BPF_RET, BPF_ST, BPF_W, SKF_AD_OFF, sock_filter,
};

/// What a program returns for frames that are taken, whole.
pub(super) const ACCEPT: u32 = u32::MAX;
/// What it returns for all others.
pub(super) const REJECT: u32 = 0;

/// How far a conditional jump reaches.
const REACH: usize = u8::MAX as usize;

/// A part of a frame, as a number; or what the kernel knows of the frame beside its bytes.
#[derive(Clone, Copy)]
pub(super) struct Field {
    mode: u32,
    size: u32,
    at: u32,
}

impl Field {
    /// One byte, `at` bytes into the frame.
    pub(super) const fn byte(at: u32) -> Field {
        Field { mode: BPF_ABS, size: BPF_B, at }
    }

    /// Two bytes.
    pub(super) const fn half(at: u32) -> Field {
        Field { mode: BPF_ABS, size: BPF_H, at }
    }

    /// Four bytes.
    pub(super) const fn word(at: u32) -> Field {
        Field { mode: BPF_ABS, size: BPF_W, at }
    }

    /// The same beyond the index.
    pub(super) const fn indexed(self) -> Field {
        Field { mode: BPF_IND, ..self }
    }

    /// What [`Program::store`] has put aside under this number, of which there are 16. To load it again takes the
    /// kernel one instruction; from the frame, more than a dozen.
    pub(super) const fn stored(slot: u32) -> Field {
        Field { mode: BPF_MEM, size: BPF_W, at: slot }
    }

    /// One of the kernel's `SKF_AD_*`.
    pub(super) const fn info(what: i32) -> Field {
        Field::word((SKF_AD_OFF + what) as u32)
    }
}

/// A place in a program that can be jumped to before it is known.
#[derive(Clone, Copy)]
pub(super) struct Label(usize);

/// A program in the making. Comparisons are with what the load before has loaded.
pub(super) struct Program {
    /// Takes the frame.
    pub(super) accept: Label,
    /// Leaves it.
    pub(super) reject: Label,
    instructions: Vec<sock_filter>,
    places: Vec<usize>,
    jumps: Vec<(usize, Label)>,
}

impl Program {
    pub(super) fn new() -> Program {
        let (accept, reject) = (Label(0), Label(1));
        Program { accept, reject, instructions: Vec::new(), places: vec![0; 2], jumps: Vec::new() }
    }

    pub(super) fn finish(mut self) -> Vec<sock_filter> {
        for (label, verdict) in [(self.accept, ACCEPT), (self.reject, REJECT)] {
            self.place(label);
            self.push(BPF_RET | BPF_K, 0, 0, verdict);
        }
        for (at, label) in self.jumps {
            self.instructions[at].k = (self.places[label.0] - at - 1) as u32;
        }
        self.instructions
    }

    pub(super) fn label(&mut self) -> Label {
        self.places.push(0);
        Label(self.places.len() - 1)
    }

    /// What comes next is what jumps to the label lead to. Jumps go forward only.
    pub(super) fn place(&mut self, label: Label) {
        self.places[label.0] = self.instructions.len();
    }

    pub(super) fn load(&mut self, field: Field) {
        self.push(BPF_LD | field.mode | field.size, 0, 0, field.at);
    }

    /// Loads the field, and puts it aside as a stored one.
    pub(super) fn store(&mut self, field: Field, stored: Field) {
        self.load(field);
        self.push(BPF_ST, 0, 0, stored.at);
    }

    /// Sets the index.
    pub(super) fn index(&mut self, value: u32) {
        self.push(BPF_LDX | BPF_W | BPF_IMM, 0, 0, value);
    }

    /// Makes the length of the IPv4 header that is `at` bytes into the frame the index.
    pub(super) fn index_header_len(&mut self, at: u32) {
        self.push(BPF_LDX | BPF_MSH | BPF_B, 0, 0, at);
    }

    pub(super) fn goto(&mut self, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(BPF_JMP | BPF_JA, 0, 0, 0);
    }

    pub(super) fn goto_if(&mut self, value: u32, label: Label) {
        self.push(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, value);
        self.goto(label);
    }

    pub(super) fn goto_unless(&mut self, value: u32, label: Label) {
        self.push(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, value);
        self.goto(label);
    }

    pub(super) fn goto_if_bits(&mut self, bits: u32, label: Label) {
        self.push(BPF_JMP | BPF_JSET | BPF_K, 0, 1, bits);
        self.goto(label);
    }

    pub(super) fn goto_outside(&mut self, range: &RangeInclusive<u16>, label: Label) {
        self.push(BPF_JMP | BPF_JGE | BPF_K, 1, 0, u32::from(*range.start()));
        self.goto(label);
        self.push(BPF_JMP | BPF_JGT | BPF_K, 0, 1, u32::from(*range.end()));
        self.goto(label);
    }

    /// Goes to `yes` if the fields have the values of one of the keys, else to `no`. Keys are sorted, without
    /// repetitions, and have a value for each field. What many of them begin or end with is compared once.
    pub(super) fn goto_one_of(&mut self, fields: &[Field], keys: &[&[u32]], yes: Label, no: Label) {
        let (Some((field, rest)), false) = (fields.split_first(), keys.is_empty()) else {
            return self.goto(no);
        };
        self.load(*field);
        let mut branches: BTreeMap<Vec<&[u32]>, Vec<u32>> = BTreeMap::new();
        for same in keys.chunk_by(|a, b| a[0] == b[0]) {
            branches.entry(same.iter().map(|key| &key[1..]).collect()).or_default().push(same[0][0]);
        }
        if branches.len() == 1
            && let Some((keys, values)) = branches.first_key_value()
            && let [value] = values[..]
        {
            // Usual for addresses of IPv6: all are in one network, or no two are alike.
            self.goto_unless(value, no);
            return if rest.is_empty() { self.goto(yes) } else { self.goto_one_of(rest, keys, yes, no) };
        }
        let mut open = Vec::new();
        for (keys, values) in branches {
            let label = if rest.is_empty() { yes } else { self.label() };
            self.goto_if_any(&values, label);
            open.push((keys, label));
        }
        self.goto(no);
        for (keys, label) in open.into_iter().filter(|_| !rest.is_empty()) {
            self.place(label);
            self.goto_one_of(rest, &keys, yes, no);
        }
    }

    /// Three instructions for values in a row, one for any other, and two for as many as a jump reaches over. Values are
    /// sorted, without repetitions.
    fn goto_if_any(&mut self, values: &[u32], label: Label) {
        let mut others = Vec::new();
        for row in values.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            match row {
                [first, _, .., last] if row.len() > 3 => {
                    self.push(BPF_JMP | BPF_JGE | BPF_K, 0, 2, *first);
                    self.push(BPF_JMP | BPF_JGT | BPF_K, 1, 0, *last);
                    self.goto(label);
                }
                _ => others.extend(row),
            }
        }
        for values in others.chunks(REACH) {
            if let [value] = values {
                return self.goto_if(*value, label);
            }
            for (n, value) in values.iter().enumerate() {
                self.push(BPF_JMP | BPF_JEQ | BPF_K, (values.len() - n) as u8, 0, *value);
            }
            self.push(BPF_JMP | BPF_JA, 0, 0, 1);
            self.goto(label);
        }
    }

    fn push(&mut self, code: u32, jt: u8, jf: u8, k: u32) {
        self.instructions.push(sock_filter { code: code as u16, jt, jf, k });
    }
}

/// Instructions that the kernel makes of a program at most; it expands ours to its own, of which a load from the
/// frame takes the most (`bpf_convert_filter` in net/core/filter.c).
pub(super) fn kernel_instructions(program: &[sock_filter]) -> usize {
    const PROLOGUE: usize = 16;
    let of = |instruction: &sock_filter| match u32::from(instruction.code) {
        code if code == BPF_LD | BPF_MEM | BPF_W => 1,
        code if code & 0x07 == BPF_LD => 14,
        code if code & 0x07 == BPF_LDX => 20,
        code if code == BPF_JMP | BPF_JA || code == BPF_ST => 1,
        // A value above i32::MAX is made in a register first.
        code if code & 0x07 == BPF_JMP => 1 + usize::from(instruction.k > i32::MAX as u32),
        _ => 2,
    };
    PROLOGUE + program.iter().map(of).sum::<usize>()
}
