//! For the fuzz targets: what is read of a list of the API server.

use crate::LeftOut;
use crate::objects::Page;
use crate::read::{Found, Object};
use crate::wire::{WireLease, WireNode, WirePod, WireRuntimeClass, WireSlice};

/// Of each object of a list of that kind its name, or why it is left out.
///
/// # Errors
/// Where it is no list.
pub fn page(kind: &str, json: &str) -> Result<Vec<Result<String, LeftOut>>, serde_json::Error> {
    match kind {
        "nodes" => names::<WireNode>(json),
        "leases" => names::<WireLease>(json),
        "resourceslices" => names::<WireSlice>(json),
        "runtimeclasses" => names::<WireRuntimeClass>(json),
        _ => names::<WirePod>(json),
    }
}

fn names<K: Object>(json: &str) -> Result<Vec<Result<String, LeftOut>>, serde_json::Error> {
    let name = |found: Found<K>| match found {
        Ok(object) => Ok(object.name().unwrap_or_default().to_owned()),
        Err(unread) => Err(unread.left),
    };
    Page::<K>::parse(json).map(|page| page.items.into_iter().map(name).collect())
}
