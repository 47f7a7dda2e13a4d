//! How a card that cannot do what is asked of it is refused: each sentence once.

use mpsgate_model::{Code, Refusal};

use crate::card::Card;

impl Card {
    /// Whether nothing is known to keep it from serving clients.
    ///
    /// # Errors
    /// A refusal with what does.
    pub fn serves(&self) -> Result<(), Refusal> {
        self.trouble().map_or(Ok(()), |trouble| Err(trouble.refusal(self.label())))
    }

    /// Whether it is handed to mpsgate.
    ///
    /// # Errors
    /// A refusal that ends with `so`: what follows for who asks.
    pub fn is_ours(&self, so: &str) -> Result<(), Refusal> {
        if self.is_managed() {
            return Ok(());
        }
        let sentence = format!("{} is not managed{so}", self.label());
        Err(Refusal::new(Code::GpuUnmanaged, sentence, format!("mpsgate enable {}", self.index)))
    }

    /// The refusal of what only MPS has, of a card that is shared without it. `so` as in
    /// [`Card::is_ours`].
    #[must_use]
    pub fn without_mps(&self, so: &str, hint: &str) -> Refusal {
        let sentence = format!("{} is shared without MPS, so {so}", self.label());
        Refusal::new(Code::GpuUnfit, sentence, hint)
    }
}
