//! Recognises the fake NVML of the tests and the demo.

// JUSTIFICATION (1 block): only the loaded library itself can say that it is a fake, and a symbol
// that no driver exports is the one sign that cannot be mistaken. Looking a symbol up is `unsafe`.
#![expect(unsafe_code, reason = "symbol lookup; see the justification above")]

use nvml_wrapper::Nvml;

/// A symbol that the fake exports, and no driver.
const MARKER: &[u8] = b"mpsgate_simulated_gpus\0";

/// Whether the library behind `nvml` invents its cards.
pub(crate) fn is_simulated(nvml: &Nvml) -> bool {
    // SAFETY: the symbol is looked up, never called or kept, so its type cannot be misused.
    unsafe { nvml.lib().__library.get::<unsafe extern "C" fn()>(MARKER).is_ok() }
}
