//! The code that protoc generates from kubelet's schemas.

#[path = "generated/dra.rs"]
pub mod dra;
#[path = "generated/health_v1.rs"]
pub mod health_v1;
#[path = "generated/health_v1alpha1.rs"]
pub mod health_v1alpha1;
#[path = "generated/registration.rs"]
pub mod registration;
