//! Values of candle's tensors as bytes, in the order of their indices.

use candle_core::{CpuStorage, DType, Layout, Result, WithDType, bail};

/// Numbers that steps on the host work with.
///
/// # Safety
///
/// The type has no padding, needs an alignment of at most 512 bytes, and every pattern of bytes is a value of it.
pub unsafe trait Element: WithDType {}

macro_rules! elements {
    ($($name:ty),*) => {
        $(
            // SAFETY: a number without padding, of which every pattern of bytes is a value.
            unsafe impl Element for $name {}
        )*
    };
}
elements!(u8, u32, i16, i32, i64, f32, f64, half::f16, half::bf16);

/// The bytes of numbers.
fn raw<T: WithDType>(values: &[T]) -> &[u8] {
    // SAFETY: called with candle's number types only, which have no padding.
    unsafe { core::slice::from_raw_parts(values.as_ptr().cast(), core::mem::size_of_val(values)) }
}

/// The bytes of numbers, to be changed.
fn raw_mut<T: WithDType>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every pattern of bytes is a value.
    unsafe { core::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), core::mem::size_of_val(values)) }
}

/// Numbers from their bytes.
fn numbers<T: WithDType>(bytes: &[u8]) -> Vec<T> {
    let mut values = vec![T::from_f64(0.0); bytes.len() / size_of::<T>()];
    let whole = values.len() * size_of::<T>();
    raw_mut(&mut values).copy_from_slice(&bytes[..whole]);
    values
}

/// Runs the body for each type of storage that has numbers, the values bound to a name.
macro_rules! for_numbers {
    ($storage:expr, $values:ident => $body:expr) => {
        match $storage {
            CpuStorage::U8($values) => $body,
            CpuStorage::U32($values) => $body,
            CpuStorage::I16($values) => $body,
            CpuStorage::I32($values) => $body,
            CpuStorage::I64($values) => $body,
            CpuStorage::BF16($values) => $body,
            CpuStorage::F16($values) => $body,
            CpuStorage::F32($values) => $body,
            CpuStorage::F64($values) => $body,
            CpuStorage::F8E4M3($values) => $body,
            // candle keeps these as bytes.
            CpuStorage::F8E8M0($values) => $body,
            CpuStorage::F6E2M3(_) | CpuStorage::F6E3M2(_) | CpuStorage::F4(_) => {
                bail!("types of less than eight bits have no layout of their own; cast the tensor first")
            }
        }
    };
}

/// The type of a storage's elements, of which each has whole bytes.
pub(crate) fn dtype_of(storage: &CpuStorage) -> Result<DType> {
    fn of<T: WithDType>(_values: &[T]) -> DType {
        T::DTYPE
    }
    if matches!(storage, CpuStorage::F8E8M0(_)) {
        return Ok(DType::F8E8M0);
    }
    Ok(for_numbers!(storage, values => of(values)))
}

/// Copies the elements of a layout to `target`, one behind the other.
pub(crate) fn gather(storage: &CpuStorage, layout: &Layout, target: &mut [u8]) -> Result<()> {
    fn copy<T: WithDType>(values: &[T], layout: &Layout, target: &mut [u8]) {
        let bytes = raw(values);
        let mut at = 0;
        for_runs(layout, size_of::<T>(), |from, len| {
            target[at..at + len].copy_from_slice(&bytes[from..from + len]);
            at += len;
        });
    }
    for_numbers!(storage, values => copy(values, layout, target));
    Ok(())
}

/// Copies elements that lie one behind the other to the places of a layout.
pub(crate) fn scatter(source: &[u8], storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
    fn copy<T: WithDType>(source: &[u8], values: &mut [T], layout: &Layout) {
        let bytes = raw_mut(values);
        let mut at = 0;
        for_runs(layout, size_of::<T>(), |to, len| {
            bytes[to..to + len].copy_from_slice(&source[at..at + len]);
            at += len;
        });
    }
    for_numbers!(storage, values => copy(source, values, layout));
    Ok(())
}

/// A storage of elements that lie one behind the other.
pub(crate) fn storage(dtype: DType, bytes: &[u8]) -> Result<CpuStorage> {
    Ok(match dtype {
        DType::U8 => CpuStorage::U8(numbers(bytes)),
        DType::U32 => CpuStorage::U32(numbers(bytes)),
        DType::I16 => CpuStorage::I16(numbers(bytes)),
        DType::I32 => CpuStorage::I32(numbers(bytes)),
        DType::I64 => CpuStorage::I64(numbers(bytes)),
        DType::BF16 => CpuStorage::BF16(numbers(bytes)),
        DType::F16 => CpuStorage::F16(numbers(bytes)),
        DType::F32 => CpuStorage::F32(numbers(bytes)),
        DType::F64 => CpuStorage::F64(numbers(bytes)),
        DType::F8E4M3 => CpuStorage::F8E4M3(numbers(bytes)),
        DType::F8E8M0 => CpuStorage::F8E8M0(numbers(bytes)),
        other => bail!("{other:?} has no whole bytes for an element; cast the tensor first"),
    })
}

/// Calls `run(offset, bytes)` for the runs of neighbouring elements of a layout, in the order of their indices.
fn for_runs(layout: &Layout, size: usize, mut run: impl FnMut(usize, usize)) {
    let (dims, strides) = (layout.dims(), layout.stride());
    if dims.contains(&0) {
        return;
    }
    // The innermost dimensions that lie one behind the other are one run.
    let (mut outer, mut length) = (dims.len(), 1);
    while outer > 0 && (dims[outer - 1] == 1 || strides[outer - 1] == length) {
        outer -= 1;
        length *= dims[outer];
    }
    let mut index = vec![0; outer];
    let mut offset = layout.start_offset();
    loop {
        run(offset * size, length * size);
        let mut dim = outer;
        loop {
            if dim == 0 {
                return;
            }
            dim -= 1;
            index[dim] += 1;
            offset += strides[dim];
            if index[dim] < dims[dim] {
                break;
            }
            offset -= strides[dim] * dims[dim];
            index[dim] = 0;
        }
    }
}

/// The elements that lie in page-locked bytes.
pub(crate) fn elements<T: Element>(bytes: &[u8]) -> &[T] {
    if bytes.is_empty() {
        return &[];
    }
    debug_assert_eq!(bytes.as_ptr() as usize % align_of::<T>(), 0);
    // SAFETY: blocks begin at multiples of 512, which suits the type, and every pattern of bytes is a value of it.
    unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// The same, to be changed.
pub(crate) fn elements_mut<T: Element>(bytes: &mut [u8]) -> &mut [T] {
    if bytes.is_empty() {
        return &mut [];
    }
    debug_assert_eq!(bytes.as_ptr() as usize % align_of::<T>(), 0);
    // SAFETY: as above, and the bytes are borrowed alone; the type has no padding, so all bytes stay initialised.
    unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
}
