//! convey's passthrough compared with the kernel's own NAT: the frames of random conversations pass
//! both. Both forward equal segments and then have the connection in equal states, except for the
//! differences in [`differences`].

mod conversation;
mod differences;
mod translator;

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use self::conversation::{Conversation, Step};
use self::translator::{Outcome, Translator};
use crate::case::{Case, PacketTest, tests};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when Case::is_passthrough =>
        random_conversations_fare_as_with_the_conntrack_of_the_kernel [CONNTRACK, NFT],
    ]
}

/// Conversations of a run, unless `CONVEY_CONVERSATIONS` has another number. Each has its own
/// client port, used up to three times.
const CONVERSATIONS: u16 = 60;

/// Seed of the usual run, which has the same conversations each time.
const USUAL_SEED: u64 = 6_882_662_682_155_910_677;

/// Polls of convey's state until it equals the kernel's, and polls until a known difference is
/// accepted.
const MAX_LOOKS: u32 = 100;
const MIN_LOOKS: u32 = 5;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Segments of a conversation.
const MAX_STEPS: usize = 60;

/// First client port. Ports count up from here.
const FIRST_PORT: u16 = 10_000;

/// Chooses the conversations of a run, to repeat one that failed.
const SEED: &str = "CONVEY_SEED";

fn random_conversations_fare_as_with_the_conntrack_of_the_kernel(case: Case) {
    let variable = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let number = variable("CONVEY_CONVERSATIONS");
    // With an explicit number, the conversations differ in every run.
    let usual = if number.is_some() { fastrand::u64(..) } else { USUAL_SEED };
    let seed = variable(SEED).unwrap_or(usual);
    let number = number.map_or(CONVERSATIONS, |number| number as u16);
    let (mut convey, mut kernel) = (Translator::convey(case), Translator::kernel(case));
    let mut known = BTreeMap::<&str, u32>::new();
    // One failing conversation of each kind, and their number.
    let mut failures = BTreeMap::<String, (u32, String)>::new();
    for port in (FIRST_PORT..).take(number.into()) {
        let mut conversation = Conversation::new(seed ^ u64::from(port));
        let mut trace = Vec::new();
        for _ in 0..MAX_STEPS {
            let Some(step) = conversation.step() else { break };
            let outcomes = both(&mut convey, &mut kernel, port, &step);
            let [ours, theirs] = outcomes;
            trace.push(format!("{step}\n      convey {ours}, kernel {theirs}"));
            match differences::known(&step, ours, theirs) {
                _ if ours == theirs => {}
                Some(name) => *known.entry(name).or_default() += 1,
                None => {
                    let what =
                        format!("{:?} of the {:?}: convey {ours}, kernel {theirs}", step.kind, step.from);
                    let all = || (0, format!("port {port}:\n    {}", trace.join("\n    ")));
                    failures.entry(what).or_insert_with(all).0 += 1;
                }
            }
            if ours.phase != theirs.phase || differences::misleads(&step) {
                break;
            }
        }
    }
    eprintln!("{case}: seed {seed}, known differences: {known:?}");
    let told: Vec<String> =
        failures.iter().map(|(what, (times, trace))| format!("{times} times: {what}\n  {trace}")).collect();
    assert!(told.is_empty(), "differences without a reason, {SEED}={seed}\n{}", told.join("\n"));
}

/// Sends the segment through both. The flow cache notifies convey of some segments later, so the
/// test waits a while for convey's state to become the kernel's, and a shorter time for a known
/// difference.
fn both(convey: &mut Translator, kernel: &mut Translator, port: u16, step: &Step) -> [Outcome; 2] {
    let [ours, theirs] = [&mut *convey, &mut *kernel].map(|translator| {
        let forwarded = translator.pass(port, step);
        Outcome { forwarded, phase: translator.phase(port) }
    });
    let mut ours = ours;
    for look in 0..MAX_LOOKS {
        let is_settled = look >= MIN_LOOKS && differences::known(step, ours, theirs).is_some();
        if ours.phase == theirs.phase || is_settled {
            break;
        }
        thread::sleep(LOOK_EVERY);
        ours.phase = convey.phase(port);
    }
    [ours, theirs]
}
