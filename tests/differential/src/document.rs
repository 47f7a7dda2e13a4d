//! One generated document, and what is expected of it.

use crate::json::Json;
use crate::mutate::{self, Wrap};
use crate::random::Random;

/// A card of the sandbox: 195:0 and 195:1.
pub(crate) const CARDS: [u64; 2] = [0, 1];

/// A generated document.
pub(crate) struct Document {
    /// As it is written.
    pub(crate) bytes: Vec<u8>,
    /// What was done to the base, in order.
    pub(crate) story: Vec<String>,
    /// Nothing in it is about devices or GPUs: it has to start as without mpsgate.
    pub(crate) is_ordinary: bool,
    /// It asks for memory of card 0, and may be given that.
    pub(crate) asks: bool,
}

impl Document {
    pub(crate) fn new(base: &Json, random: &mut Random, policy: &str) -> Self {
        let mut tree = base.clone();
        let mut story = Vec::new();
        let mut is_ordinary = random.percent(15);
        let asks = !is_ordinary && random.percent(20);
        if asks {
            mutate::request(&mut tree);
            story.push("request".to_owned());
        }
        if is_ordinary {
            story.push(mutate::ordinary(&mut tree, random));
        } else {
            for _ in 0..=random.below(3) {
                story.push(mutate::device(&mut tree, random));
            }
            if policy == "strip" && !asks && random.percent(20) {
                mutate::privilege(&mut tree);
                story.push("privileged".to_owned());
            }
        }
        if random.percent(40)
            && let Some(what) = mutate::respell(&mut tree, random)
        {
            // Runtimes differ in what the rules say then: runc folds letters, crun does not and
            // falls back to what opens most. A refusal is right, and so is a start that opens
            // nothing.
            is_ordinary = false;
            story.push(what);
        }
        let wrap = if random.percent(20) { Wrap::any(random) } else { Wrap::Plain };
        if !matches!(wrap, Wrap::Plain) {
            story.push(format!("{wrap:?}"));
        }
        let mut bytes = Vec::new();
        wrap.around(tree, random).write(&mut bytes);
        Self { bytes, story, is_ordinary, asks }
    }
}
