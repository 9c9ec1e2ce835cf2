//! What the kernel does with a filter.

use libc::{
    BPF_ABS, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K,
    BPF_LD, BPF_LDX, BPF_MEM, BPF_MSH, BPF_RET, BPF_ST, BPF_W, SKF_AD_OFF, SKF_AD_PKTTYPE,
    SKF_AD_VLAN_TAG_PRESENT, sock_filter,
};

use super::super::Filter;
use super::super::program::{ACCEPT, REJECT};
use super::Frame;

pub(super) fn accepts(filter: &Filter, frame: &Frame) -> bool {
    match run(filter.instructions(), frame) {
        ACCEPT => true,
        REJECT => false,
        other => panic!("accepts only {other} bytes of a frame"),
    }
}

/// One run, as the kernel does it: a load beyond the frame ends it with rejection.
fn run(program: &[sock_filter], frame: &Frame) -> u32 {
    let load = |size: u32, at: u32| -> Option<u32> {
        match at.wrapping_sub(SKF_AD_OFF as u32) as i32 {
            SKF_AD_VLAN_TAG_PRESENT => return Some(u32::from(frame.vlan_tag)),
            SKF_AD_PKTTYPE => return Some(if frame.to_others { 3 } else { 0 }),
            _ => {}
        }
        let len = match size {
            BPF_B => 1,
            BPF_H => 2,
            _ => 4,
        };
        let bytes = frame.bytes.get(at as usize..at as usize + len)?;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    };
    let (mut pc, mut a, mut x, mut stored) = (0, 0, 0u32, [None; 16]);
    loop {
        let sock_filter { code, jt, jf, k } = program[pc];
        pc += 1;
        let mut branch = |taken: bool| pc += usize::from(if taken { jt } else { jf });
        let code = u32::from(code);
        let size = code & (BPF_B | BPF_H);
        match code {
            c if c == BPF_RET | BPF_K => return k,
            c if c == BPF_JMP | BPF_JA => pc += k as usize,
            c if c == BPF_JMP | BPF_JEQ | BPF_K => branch(a == k),
            c if c == BPF_JMP | BPF_JGE | BPF_K => branch(a >= k),
            c if c == BPF_JMP | BPF_JGT | BPF_K => branch(a > k),
            c if c == BPF_JMP | BPF_JSET | BPF_K => branch(a & k != 0),
            c if c == BPF_ST => stored[k as usize] = Some(a),
            c if c == BPF_LD | BPF_MEM | BPF_W => a = stored[k as usize].expect("stored before"),
            c if c == BPF_LDX | BPF_W | BPF_IMM => x = k,
            c if c == BPF_LDX | BPF_MSH | BPF_B => match load(BPF_B, k) {
                Some(byte) => x = (byte & 0xf) * 4,
                None => return REJECT,
            },
            c if c & !size == BPF_LD | BPF_ABS => match load(size, k) {
                Some(value) => a = value,
                None => return REJECT,
            },
            c if c & !size == BPF_LD | BPF_IND => match load(size, x + k) {
                Some(value) => a = value,
                None => return REJECT,
            },
            other => panic!("instruction {other:#x} is not used here"),
        }
    }
}
