//! The few functions of libcuda that a probe needs, looked up at run time.
//!
//! JUSTIFICATION for unsafe code: the CUDA driver API is C, and no crate wraps these functions
//! without linking to it. One file; each call passes plain numbers and pointers to locals.
#![allow(unsafe_code, reason = "see above")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};

use std::time::{Duration, Instant};

use libloading::Library;

use super::Device;
use crate::error::CudaError;

/// `CUDA_SUCCESS`.
const SUCCESS: c_int = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`: what an allocation beyond an MPS limit gives.
const OUT_OF_MEMORY: c_int = 2;
const MIB: usize = 1 << 20;
/// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED`: contexts created on this device will be shared via MPS
/// (cuda.h; older drivers answer that they know no such attribute).
const MPS_ENABLED: c_int = 133;

/// PTX that each driver since 384 makes code of for its card: Volta and newer.
const KERNEL: &CStr = c"
.version 6.0
.target sm_70
.address_size 64
.visible .entry work(.param .u64 out, .param .u32 rounds)
{
.reg .pred %p;
.reg .u32 %r<3>;
.reg .f32 %f;
.reg .u64 %a<2>;
ld.param.u64 %a0, [out];
cvta.to.global.u64 %a1, %a0;
ld.param.u32 %r0, [rounds];
mov.u32 %r1, %tid.x;
cvt.rn.f32.u32 %f, %r1;
again:
fma.rn.f32 %f, %f, 0f3F800001, 0f3F800000;
sub.u32 %r0, %r0, 1;
setp.ne.u32 %p, %r0, 0;
@%p bra again;
st.global.f32 [%a1], %f;
ret;
}
";
/// A small part of a card, and some 50 µs of an H200.
const BLOCKS: c_uint = 8;
const ROUNDS: c_uint = 20_000;
const THREADS: c_uint = 256;
/// Launches between two waits for them.
const BATCH: u32 = 16;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type DeviceGetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type ContextRetain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type ContextCreate = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int;
type ContextSetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type ContextRelease = unsafe extern "C" fn(c_int) -> c_int;
type MemGetInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;
type MemAlloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type MemFree = unsafe extern "C" fn(u64) -> c_int;
type ModuleLoad = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
type ModuleGetFunction =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
type Synchronize = unsafe extern "C" fn() -> c_int;
type Launch = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type ErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// Device 0 with its primary context, and everything allocated on it. Also the client of `mpsgate
/// qualify`, step by step.
pub(crate) struct Cuda {
    library: Library,
    device: c_int,
    allocated: Vec<u64>,
    retained: bool,
}

impl Cuda {
    /// With a context on the device.
    pub(crate) fn open(name: &OsStr) -> Result<Self, CudaError> {
        let mut cuda = Self::attach(name)?;
        cuda.retain()?;
        Ok(cuda)
    }

    /// Without a context: an MPS client that has been let in.
    pub(super) fn attach(name: &OsStr) -> Result<Self, CudaError> {
        let bad =
            |source| CudaError::Library { library: name.to_string_lossy().into_owned(), source };
        // SAFETY: loading NVIDIA's library runs its initialisers, which is what a CUDA program
        // does.
        let library = unsafe { Library::new(name) }.map_err(bad)?;
        let mut cuda = Self { library, device: 0, allocated: Vec::new(), retained: false };
        let init: Init = cuda.symbol(b"cuInit\0")?;
        // SAFETY: cuInit takes flags that must be zero.
        cuda.check("cuInit", unsafe { init(0) })?;
        let get: DeviceGet = cuda.symbol(b"cuDeviceGet\0")?;
        let mut device = 0;
        // SAFETY: a pointer to a local.
        cuda.check("cuDeviceGet", unsafe { get(&raw mut device, 0) })?;
        cuda.device = device;
        Ok(cuda)
    }

    /// The primary context.
    pub(super) fn retain(&mut self) -> Result<(), CudaError> {
        let retain: ContextRetain = self.symbol(b"cuDevicePrimaryCtxRetain\0")?;
        let mut context = std::ptr::null_mut();
        // SAFETY: a pointer to a local, and the device just given.
        self.check("cuDevicePrimaryCtxRetain", unsafe { retain(&raw mut context, self.device) })?;
        self.retained = true;
        let set: ContextSetCurrent = self.symbol(b"cuCtxSetCurrent\0")?;
        // SAFETY: the context just retained.
        self.check("cuCtxSetCurrent", unsafe { set(context) })
    }

    /// One more context, which is the current one from then on.
    pub(super) fn second(&mut self) -> Result<(), CudaError> {
        let create: ContextCreate = self.symbol(b"cuCtxCreate_v2\0")?;
        let mut context = std::ptr::null_mut();
        // SAFETY: a pointer to a local, no flags, and the device that cuDeviceGet gave.
        self.check("cuCtxCreate", unsafe { create(&raw mut context, 0, self.device) })
    }

    /// Whether CUDA says that this process is a client of an MPS server; `None` where the driver
    /// does not tell.
    pub(crate) fn is_mps_client(&self) -> Option<bool> {
        let get: DeviceGetAttribute = self.symbol(b"cuDeviceGetAttribute\0").ok()?;
        let mut enabled = 0;
        // SAFETY: a pointer to a local, and the device that cuDeviceGet gave.
        let code = unsafe { get(&raw mut enabled, MPS_ENABLED, self.device) };
        (code == SUCCESS).then_some(enabled != 0)
    }

    /// Launches a kernel of some 50 µs on eight blocks over and over; how often it ran.
    pub(super) fn work(&self, time: Duration) -> Result<u64, CudaError> {
        let load: ModuleLoad = self.symbol(b"cuModuleLoadData\0")?;
        let find: ModuleGetFunction = self.symbol(b"cuModuleGetFunction\0")?;
        let allocate: MemAlloc = self.symbol(b"cuMemAlloc_v2\0")?;
        let launch: Launch = self.symbol(b"cuLaunchKernel\0")?;
        let synchronize: Synchronize = self.symbol(b"cuCtxSynchronize\0")?;
        let (mut module, mut kernel, mut result) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: pointers to locals, and a text that ends with a NUL.
        self.check("cuModuleLoadData", unsafe { load(&raw mut module, KERNEL.as_ptr().cast()) })?;
        // SAFETY: pointers to locals, the module just loaded, and a name in it.
        self.check("cuModuleGetFunction", unsafe {
            find(&raw mut kernel, module, c"work".as_ptr())
        })?;
        // SAFETY: a pointer to a local and a size. The end of the process frees it.
        self.check("cuMemAlloc", unsafe { allocate(&raw mut result, 4) })?;
        let mut rounds: c_uint = ROUNDS;
        let mut arguments: [*mut c_void; 2] = [(&raw mut result).cast(), (&raw mut rounds).cast()];
        let mut run = |times: u32| {
            for _ in 0..times {
                let null = std::ptr::null_mut();
                // SAFETY: the kernel takes these two arguments, which outlive the call; cuda.h lets
                // the stream and what is extra be null.
                let code = unsafe {
                    let arguments = arguments.as_mut_ptr();
                    launch(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, null, arguments, null.cast())
                };
                self.check("cuLaunchKernel", code)?;
            }
            // SAFETY: no arguments; the context is current.
            self.check("cuCtxSynchronize", unsafe { synchronize() })
        };
        // The first launch is slow, and does not count.
        run(1)?;
        let (mut count, begun) = (0, Instant::now());
        while begun.elapsed() < time {
            run(BATCH)?;
            count += u64::from(BATCH);
        }
        Ok(count)
    }

    fn symbol<F: Copy>(&self, name: &'static [u8]) -> Result<F, CudaError> {
        // SAFETY: every F above is the type that cuda.h gives for its name.
        unsafe { self.library.get::<F>(name) }
            .map(|symbol| *symbol)
            .map_err(|source| CudaError::Library { library: "libcuda".to_owned(), source })
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut name = std::ptr::null();
        if let Ok(error_name) = self.symbol::<ErrorName>(b"cuGetErrorName\0") {
            // SAFETY: a pointer to a local; CUDA writes a static string or null.
            unsafe { error_name(code, &raw mut name) };
        }
        let name = if name.is_null() {
            "unknown error".to_owned()
        } else {
            // SAFETY: not null, hence a static string of CUDA's.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        Err(CudaError::Call { function, name, code })
    }
}

impl Device for Cuda {
    fn allocate(&mut self, mib: u64) -> Result<bool, CudaError> {
        let allocate: MemAlloc = self.symbol(b"cuMemAlloc_v2\0")?;
        let bytes = usize::try_from(mib).unwrap_or(usize::MAX).saturating_mul(MIB);
        let mut pointer = 0;
        // SAFETY: a pointer to a local and a size.
        match unsafe { allocate(&raw mut pointer, bytes) } {
            OUT_OF_MEMORY => Ok(false),
            code => {
                self.check("cuMemAlloc", code)?;
                self.allocated.push(pointer);
                Ok(true)
            }
        }
    }

    fn memory(&self) -> Result<(u64, u64), CudaError> {
        let info: MemGetInfo = self.symbol(b"cuMemGetInfo_v2\0")?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: pointers to locals.
        self.check("cuMemGetInfo", unsafe { info(&raw mut free, &raw mut total) })?;
        let mib = |bytes: usize| u64::try_from(bytes / MIB).unwrap_or(u64::MAX);
        Ok((mib(free), mib(total)))
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if let Ok(free) = self.symbol::<MemFree>(b"cuMemFree_v2\0") {
            for pointer in self.allocated.drain(..) {
                // SAFETY: a pointer that cuMemAlloc gave, freed once.
                unsafe { free(pointer) };
            }
        }
        if let (true, Ok(release)) =
            (self.retained, self.symbol::<ContextRelease>(b"cuDevicePrimaryCtxRelease_v2\0"))
        {
            // SAFETY: retained in `open`.
            unsafe { release(self.device) };
        }
    }
}
