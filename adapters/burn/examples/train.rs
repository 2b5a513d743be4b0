//! A burn model is trained on a data set made here; its batches and its weights lie in page-locked memory.
//!
//! `cargo run -p ascend-alloc-burn --example train`

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_alloc::{Config, DeviceAllocator};
use ascend_alloc_burn::{Batch, Upload, load_safetensors};
use ascend_sim::{Sim, SimConfig};
use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

const CLASSES: usize = 3;
const BATCH: usize = 64;
const STEPS: usize = 150;

/// Two layers: a point of the plane to one of three spirals.
#[derive(Module, Debug)]
struct Model {
    first: Linear,
    activation: Relu,
    second: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(2, 32).init(device),
            activation: Relu::new(),
            second: LinearConfig::new(32, CLASSES).init(device),
        }
    }

    fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        self.second.forward(self.activation.forward(self.first.forward(points)))
    }
}

/// A point of one of three spirals, and which one; always the same for the same number.
fn sample(number: usize) -> ([f32; 2], i32) {
    let class = number % CLASSES;
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let radius = 0.1 + 0.9 * (mixed as f32 / (1u64 << 24) as f32);
    let angle = radius * 3.0 + class as f32 * std::f32::consts::TAU / CLASSES as f32;
    ([radius * angle.cos(), radius * angle.sin()], class as i32)
}

/// A batch that was filled in page-locked memory.
fn batch(
    pinned: &Arc<PinnedAllocator>,
    step: usize,
    device: &Device,
) -> ascend_alloc::Result<(Tensor<2>, Tensor<1, Int>)> {
    let mut points = Batch::<f32>::new(pinned.clone(), BATCH, 2)?;
    let mut classes = Batch::<i32>::new(pinned.clone(), BATCH, 1)?;
    for row in 0..BATCH {
        let (point, class) = sample(step * BATCH + row);
        if let (Some(target), Some(label)) = (points.row_mut(row), classes.row_mut(row)) {
            target.copy_from_slice(&point);
            label[0] = class;
        }
    }
    let classes = Tensor::<2, Int>::from_data(classes.into_data(), (device, DType::I32));
    Ok((points.into_tensor(device), classes.reshape([BATCH])))
}

/// The share of points that the model puts on their spiral.
fn accuracy(model: &Model, points: Tensor<2>, classes: Tensor<1, Int>) -> f32 {
    let found = model.forward(points).argmax(1).reshape([BATCH]);
    found.equal(classes).int().sum().into_scalar::<i64>() as f32 / BATCH as f32
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(SimConfig { lag: 10, ..SimConfig::default() });
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = DeviceAllocator::new(Config::default(), driver.clone())?;
    let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver)?);

    // Training. Each batch is dropped after its step, so the next one has its memory.
    let device = Device::flex().autodiff();
    let mut model = Model::new(&device);
    let mut optimizer = AdamConfig::new().init();
    for step in 0..STEPS {
        let (points, classes) = batch(&pinned, step, &device)?;
        let output = model.forward(points);
        let loss = CrossEntropyLossConfig::new().init(&device).forward(output, classes);
        if step % 50 == 0 || step == STEPS - 1 {
            println!("step {step:3}: loss {:.3}", loss.clone().into_scalar::<f32>());
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.02, model, gradients);
    }
    let stats = pinned.stats();
    println!(
        "{STEPS} batches: {} bytes page-locked at most, {} regions taken of the driver, {} bytes live now",
        stats.active_bytes.peak, stats.num_host_alloc, stats.active_bytes.current
    );

    // The weights go to a file and come back, straight into page-locked memory.
    let path = std::env::temp_dir().join(format!("ascend-alloc-train-{}.safetensors", std::process::id()));
    save(&model, &path)?;
    let loaded = load_safetensors(&path, &pinned);
    std::fs::remove_file(&path)?;
    let loaded = loaded?;
    println!("{} tensors loaded, {} bytes page-locked", loaded.len(), pinned.stats().active_bytes.current);

    // One copy of each goes to the device, from where it lies.
    let mut on_device = Vec::new();
    let mut weights = Vec::new();
    for (name, data) in loaded {
        let target = allocator.allocate(0, data.as_bytes().len() as u64, 0, Stream(0))?;
        let upload = Upload::queue(&pinned, data, target, 0, Stream(0)).map_err(|(error, _data)| error)?;
        weights.push((name, upload.wait().map_err(|(error, _copy)| error)?));
        on_device.push(target);
    }
    println!("{} bytes on the device", allocator.stats(0)?.requested_bytes.all.current);

    // The model of page-locked weights gives the same answers.
    let device = Device::flex();
    let trained = restore(Model::new(&device), weights, &device)?;
    let (points, classes) = batch(&pinned, STEPS, &device)?;
    let accuracy = accuracy(&trained, points, classes);
    println!("accuracy on points it has not seen: {:.0} %", accuracy * 100.0);

    drop(trained);
    for target in on_device {
        allocator.deallocate(target)?;
    }
    // What still waits for a copy that read it goes back once that is done.
    pinned.empty_cache_waiting()?;
    let findings = sim.take_findings();
    let left = pinned.stats().active_bytes.current + allocator.stats(0)?.allocated_bytes.all.current;
    println!("{left} bytes live at the end, {} findings", findings.len());
    if left != 0 || !findings.is_empty() || accuracy < 0.8 {
        return Err(format!("something is wrong: {findings:?}").into());
    }
    Ok(())
}

/// The weights by name.
fn parameters(model: &Model) -> Vec<(&'static str, TensorData)> {
    let mut list = vec![
        ("first.weight", model.first.weight.val().into_data()),
        ("second.weight", model.second.weight.val().into_data()),
    ];
    for (name, layer) in [("first.bias", &model.first), ("second.bias", &model.second)] {
        list.extend(layer.bias.as_ref().map(|bias| (name, bias.val().into_data())));
    }
    list
}

fn save(model: &Model, path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let data = parameters(model);
    let mut views = Vec::new();
    for (name, data) in &data {
        views.push((*name, TensorView::new(Dtype::F32, data.shape().to_vec(), data.as_bytes())?));
    }
    Ok(serialize_to_file(views, None, path)?)
}

/// The model with loaded weights.
fn restore(
    mut model: Model,
    weights: Vec<(String, TensorData)>,
    device: &Device,
) -> Result<Model, Box<dyn std::error::Error>> {
    for (name, data) in weights {
        match name.as_str() {
            "first.weight" => model.first.weight = Param::from_tensor(Tensor::from_data(data, device)),
            "second.weight" => model.second.weight = Param::from_tensor(Tensor::from_data(data, device)),
            "first.bias" => model.first.bias = Some(Param::from_tensor(Tensor::from_data(data, device))),
            "second.bias" => model.second.bias = Some(Param::from_tensor(Tensor::from_data(data, device))),
            other => return Err(format!("the file holds {other}, which the model has not").into()),
        }
    }
    Ok(model)
}
