//! A message within a message, as text.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A `T`, as JSON in a text. Who only passes it on carries no code that reads or writes a `T`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent, bound = "")]
pub struct Json<T> {
    text: String,
    #[serde(skip)]
    of: PhantomData<T>,
}

impl<T: Serialize> Json<T> {
    /// Of a message, which has nothing in it that JSON cannot hold.
    #[must_use]
    pub fn of(message: &T) -> Self {
        serde_json::to_string(message).unwrap_or_default().into()
    }
}

impl<T: DeserializeOwned> Json<T> {
    /// The message.
    ///
    /// # Errors
    /// Where the text is none.
    pub fn read(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.text)
    }
}

impl<T> From<String> for Json<T> {
    fn from(text: String) -> Self {
        Self { text, of: PhantomData }
    }
}
