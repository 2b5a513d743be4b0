//! Safetensors files straight into page-locked tensors.

use std::path::PathBuf;
use std::sync::Arc;

use ascend_alloc::driver::SimDriver;
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_alloc_burn::{LoadError, load_safetensors};
use ascend_sim::{Sim, SimConfig};
use burn::tensor::{Device, Tensor};
use safetensors::tensor::{Dtype, TensorView, serialize};

fn allocator(config: SimConfig) -> Arc<PinnedAllocator> {
    let driver = Arc::new(SimDriver::new(Sim::new(config)));
    Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver).unwrap())
}

/// A file that is removed again.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let file = format!("ascend-alloc-burn-{}-{name}.safetensors", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

fn of_f32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn every_tensor_is_a_block_with_the_bytes_of_the_file() {
    let pinned = allocator(SimConfig::default());
    let (weight, bias) = (of_f32(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), of_f32(&[0.5, -0.5]));
    let steps = 7i64.to_le_bytes();
    let views = [
        ("layer.weight", TensorView::new(Dtype::F32, vec![2, 3], &weight).unwrap()),
        ("layer.bias", TensorView::new(Dtype::F32, vec![2], &bias).unwrap()),
        ("steps", TensorView::new(Dtype::I64, vec![], &steps).unwrap()),
        ("mask", TensorView::new(Dtype::BOOL, vec![3], &[1, 0, 1]).unwrap()),
        ("nothing", TensorView::new(Dtype::F16, vec![0, 8], &[]).unwrap()),
    ];
    let file = Scratch::new("all", &serialize(views.clone(), None).unwrap());
    let mut loaded = load_safetensors(&file.0, &pinned).unwrap();
    assert_eq!(loaded.len(), 5);
    for (name, view) in &views {
        let (_, data) = loaded.iter().find(|(found, _)| found == name).unwrap();
        assert_eq!((data.as_bytes(), data.shape().to_vec()), (view.data(), view.shape().to_vec()), "{name}");
        if !data.as_bytes().is_empty() {
            let block = pinned.find(data.as_bytes().as_ptr() as u64).unwrap();
            assert_eq!(block.address(), data.as_bytes().as_ptr() as u64);
        }
    }
    assert_eq!(pinned.stats().active_bytes.current, 4 * 512);

    let position = loaded.iter().position(|(name, _)| name == "layer.weight").unwrap();
    let (_, weight) = loaded.swap_remove(position);
    let tensor = Tensor::<2>::from_data(weight, &Device::flex());
    assert_eq!(tensor.sum().into_scalar::<f32>(), 21.0);
    drop(loaded);
    assert_eq!(pinned.stats().active_bytes.current, 0);
}

#[test]
fn tensors_come_in_the_order_of_the_file_each_time() {
    let pinned = allocator(SimConfig::default());
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let nothing = || TensorView::new(Dtype::F32, vec![0, 4], &[]).unwrap();
    let one = of_f32(&[1.0]);
    let last = [("last", TensorView::new(Dtype::F32, vec![1], &one).unwrap())];
    let views = names.into_iter().map(|name| (name, nothing())).chain(last);
    let file = Scratch::new("order", &serialize(views, None).unwrap());
    for _ in 0..4 {
        let loaded = load_safetensors(&file.0, &pinned).unwrap();
        let found: Vec<_> = loaded.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(found, ["a", "b", "c", "d", "e", "f", "g", "h", "last"]);
    }
}

#[test]
fn damaged_files_are_refused_with_a_reason() {
    let pinned = allocator(SimConfig::default());
    let values = of_f32(&[1.0; 64]);
    let good = serialize([("a", TensorView::new(Dtype::F32, vec![64], &values).unwrap())], None).unwrap();
    let reasons = [
        (good[..5].to_vec(), "first eight bytes"),
        (good[..20].to_vec(), "header"),
        (good[..good.len() - 1].to_vec(), "data"),
        ([&good[..], &[0; 3]].concat(), "3 bytes belong to no tensor"),
        ([&u64::MAX.to_le_bytes()[..], &good[8..]].concat(), "its header would have"),
        ([&[16, 0, 0, 0, 0, 0, 0, 0][..], &[b'?'; 300]].concat(), "safetensors"),
    ];
    for (number, (bytes, reason)) in reasons.into_iter().enumerate() {
        let file = Scratch::new(&format!("bad{number}"), &bytes);
        let error = load_safetensors(&file.0, &pinned).unwrap_err();
        assert!(matches!(error, LoadError::Format(_)), "{number}: {error}");
        assert!(error.to_string().contains(reason), "{number}: {error}");
    }
    let file = Scratch::new("fp8", &{
        let view = TensorView::new(Dtype::F8_E4M3, vec![4], &[0; 4]).unwrap();
        serialize([("small", view)], None).unwrap()
    });
    let error = load_safetensors(&file.0, &pinned).unwrap_err();
    assert!(matches!(&error, LoadError::Type { name, .. } if name == "small"), "{error}");
    let missing = load_safetensors(std::env::temp_dir().join("no such file"), &pinned).unwrap_err();
    assert!(matches!(missing, LoadError::Io(_)));
    assert_eq!(pinned.stats().active_bytes.current, 0);
}

#[test]
fn a_file_that_is_too_large_leaves_nothing_behind() {
    let pinned = allocator(SimConfig { host_capacity: 24 << 20, ..SimConfig::default() });
    let values = vec![0; 14 << 20];
    let view = || TensorView::new(Dtype::U8, vec![14 << 20], &values).unwrap();
    let file = Scratch::new("large", &serialize([("a", view()), ("b", view())], None).unwrap());
    let error = load_safetensors(&file.0, &pinned).unwrap_err();
    assert!(matches!(&error, LoadError::Memory { name, .. } if name == "b"), "{error}");
    assert_eq!(pinned.stats().active_bytes.current, 0);
    let small = Scratch::new("fits", &serialize([("a", view())], None).unwrap());
    assert_eq!(load_safetensors(&small.0, &pinned).unwrap().len(), 1);
    assert_eq!(pinned.stats().active_bytes.current, 0);
}
