//! An encoder of the size of BERT-tiny (2 layers, 128 wide, 2 heads, 512 inside) in candle, whose dense layers run
//! on the device: product, bias and GELU chained in one operation each. The weights are made up; both ways must
//! agree.
//!
//! `cargo run -p ascend-alloc-candle --example encoder`

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_alloc::{Config, DeviceAllocator};
use ascend_alloc_candle::{Npu, Op3};
use ascend_sim::{Sim, SimConfig};
use candle_core::{D, Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use candle_nn::{LayerNorm, Module};

const WORDS: usize = 1000;
const LENGTH: usize = 32;
const WIDTH: usize = 128;
const HEADS: usize = 2;
const INSIDE: usize = 512;
const LAYERS: usize = 2;

/// Where dense layers are computed.
#[derive(Clone)]
enum Place {
    Candle,
    Device(Npu),
}

/// Weights that are the same in every run.
struct Weights(u64);

impl Weights {
    fn tensor(&mut self, shape: &[usize], scale: f32) -> Result<Tensor> {
        let count = shape.iter().product();
        let mut next = || {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            ((self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 2.0 * scale
        };
        Tensor::from_vec((0..count).map(|_| next()).collect::<Vec<f32>>(), shape, &Device::Cpu)
    }

    fn norm(&mut self) -> Result<LayerNorm> {
        let weight = (self.tensor(&[WIDTH], 0.1)? + 1.0)?;
        Ok(LayerNorm::new(weight, self.tensor(&[WIDTH], 0.1)?, 1e-12))
    }
}

/// x w + b, with GELU behind it if wanted.
struct Dense {
    weight: Tensor,
    bias: Tensor,
    gelu: bool,
}

impl Dense {
    fn new(weights: &mut Weights, inputs: usize, outputs: usize, gelu: bool) -> Result<Self> {
        let scale = (3.0 / inputs as f32).sqrt();
        let weight = weights.tensor(&[inputs, outputs], scale)?;
        Ok(Self { weight, bias: weights.tensor(&[outputs], 0.1)?, gelu })
    }

    fn forward(&self, x: &Tensor, place: &Place) -> Result<Tensor> {
        match place {
            Place::Candle => {
                let y = x.matmul(&self.weight)?.broadcast_add(&self.bias)?;
                if self.gelu { y.gelu_erf() } else { Ok(y) }
            }
            Place::Device(npu) => x.apply_op3(&self.weight, &self.bias, dense_on_device(npu, self.gelu)),
        }
    }
}

/// The three steps of a dense layer; between them everything stays on the device.
fn dense_on_device(npu: &Npu, gelu: bool) -> Op3 {
    npu.op3("dense", move |pass, [x, weight, bias]| {
        let (rows, inputs, outputs) = (x.dims()[0], x.dims()[1], weight.dims()[1]);
        let mut y = pass.on_host([x, weight], (rows, outputs), |[x, weight], y: &mut [f32]| {
            for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact_mut(outputs)) {
                for (x, weight) in x.iter().zip(weight.chunks_exact(outputs)) {
                    y.iter_mut().zip(weight).for_each(|(y, weight)| *y += x * weight);
                }
            }
        })?;
        pass.change_on_host(&mut y, [bias], |y: &mut [f32], [bias]| {
            y.iter_mut().zip(bias.iter().cycle()).for_each(|(y, bias)| *y += bias);
        })?;
        if !gelu {
            return Ok(y);
        }
        pass.on_host([&y], y.shape(), |[x], y: &mut [f32]| {
            let half = std::f32::consts::FRAC_1_SQRT_2;
            y.iter_mut().zip(x).for_each(|(y, x)| *y = 0.5 * x * (1.0 + erf(x * half)));
        })
    })
}

/// The error function, to about 1.5e-7 (Abramowitz and Stegun 7.1.26).
fn erf(x: f32) -> f32 {
    let x64 = f64::from(x);
    let t = 1.0 / (1.0 + 0.327_591_1 * x64.abs());
    let sum = ((((1.061_405_429 * t - 1.453_152_027) * t + 1.421_413_741) * t - 0.284_496_736) * t
        + 0.254_829_592)
        * t;
    ((1.0 - sum * (-x64 * x64).exp()) * x64.signum()) as f32
}

struct Layer {
    query: Dense,
    key: Dense,
    value: Dense,
    output: Dense,
    after_attention: LayerNorm,
    up: Dense,
    down: Dense,
    after_all: LayerNorm,
}

impl Layer {
    fn new(weights: &mut Weights) -> Result<Self> {
        Ok(Self {
            query: Dense::new(weights, WIDTH, WIDTH, false)?,
            key: Dense::new(weights, WIDTH, WIDTH, false)?,
            value: Dense::new(weights, WIDTH, WIDTH, false)?,
            output: Dense::new(weights, WIDTH, WIDTH, false)?,
            after_attention: weights.norm()?,
            up: Dense::new(weights, WIDTH, INSIDE, true)?,
            down: Dense::new(weights, INSIDE, WIDTH, false)?,
            after_all: weights.norm()?,
        })
    }

    fn forward(&self, x: &Tensor, place: &Place) -> Result<Tensor> {
        let heads = |dense: &Dense| {
            let y = dense.forward(x, place)?.reshape((LENGTH, HEADS, WIDTH / HEADS))?;
            y.transpose(0, 1)?.contiguous()
        };
        let (query, key, value) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let scores = (query.matmul(&key.t()?)? / ((WIDTH / HEADS) as f64).sqrt())?;
        let mixed = softmax_last_dim(&scores)?.matmul(&value)?;
        let mixed = mixed.transpose(0, 1)?.reshape((LENGTH, WIDTH))?;
        let x = self.after_attention.forward(&(self.output.forward(&mixed, place)? + x)?)?;
        let y = self.down.forward(&self.up.forward(&x, place)?, place)?;
        self.after_all.forward(&(y + x)?)
    }
}

struct Encoder {
    words: Tensor,
    positions: Tensor,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

impl Encoder {
    fn new() -> Result<Self> {
        let mut weights = Weights(1);
        let (words, positions) =
            (weights.tensor(&[WORDS, WIDTH], 1.0)?, weights.tensor(&[LENGTH, WIDTH], 1.0)?);
        let norm = weights.norm()?;
        let layers = (0..LAYERS).map(|_| Layer::new(&mut weights)).collect::<Result<_>>()?;
        Ok(Self { words, positions, norm, layers })
    }

    fn forward(&self, sentence: &Tensor, place: &Place) -> Result<Tensor> {
        let mut x = self.norm.forward(&(self.words.index_select(sentence, 0)? + &self.positions)?)?;
        for layer in &self.layers {
            x = layer.forward(&x, place)?;
        }
        Ok(x)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(SimConfig { lag: 10, ..SimConfig::default() });
    let driver = Arc::new(SimDriver::new(sim.clone()));
    let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver.clone())?);
    let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver)?);
    let npu = Npu::new(allocator.clone(), pinned.clone(), 0, Stream(0));

    let encoder = Encoder::new()?;
    let mut farthest = 0f32;
    for number in 0..4u32 {
        let words: Vec<u32> = (0..LENGTH as u32).map(|at| (at * 131 + number * 17) % WORDS as u32).collect();
        let sentence = Tensor::from_vec(words, LENGTH, &Device::Cpu)?;
        let candle = encoder.forward(&sentence, &Place::Candle)?;
        let device = encoder.forward(&sentence, &Place::Device(npu.clone()))?;
        let difference = (&candle - &device)?.abs()?.max(D::Minus1)?.max(0)?.to_scalar::<f32>()?;
        let first = device.get(0)?.narrow(0, 0, 3)?.to_vec1::<f32>()?;
        println!("sentence {number}: first values {first:.3?}, farthest from candle's own {difference:.1e}");
        farthest = farthest.max(difference);
    }

    let stats = allocator.stats(0)?;
    let requests = stats.allocation.all.allocated;
    println!("{requests} device blocks, {} bytes at most at a time", stats.allocated_bytes.all.peak);
    println!("{} bytes held of the device", stats.reserved_bytes.all.current);
    println!("{} chunks taken of the driver", sim.count("aclrtMallocPhysical"));
    println!("{} regions of page-locked memory", pinned.stats().num_host_alloc);
    let (live, findings) = (stats.allocated_bytes.all.current, sim.take_findings());
    println!("{live} bytes live at the end, {} findings", findings.len());
    if live != 0 || !findings.is_empty() || farthest > 1e-3 {
        return Err(format!("something is wrong: {findings:?}").into());
    }
    Ok(())
}
