//! Custom operations with device memory, beside candle's own.

use std::sync::Arc;

use ascend_alloc::driver::{SimDriver, Stream};
use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
use ascend_alloc::{Config, DeviceAllocator};
use ascend_alloc_candle::{Npu, NpuTensor, Op3, Pass};
use ascend_sim::{Sim, SimConfig, WAIT_FOREVER};
use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor, Var};

struct Machine {
    sim: Sim,
    allocator: Arc<DeviceAllocator>,
    pinned: Arc<PinnedAllocator>,
    npu: Npu,
}

impl Machine {
    fn new(config: SimConfig) -> Self {
        let sim = Sim::new(config);
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver.clone()).unwrap());
        let pinned = Arc::new(PinnedAllocator::new(PinnedOptions::default(), driver).unwrap());
        let stream = Stream(sim.executor().create_stream(0).unwrap());
        let npu = Npu::new(allocator.clone(), pinned.clone(), 0, stream);
        Self { sim, allocator, pinned, npu }
    }

    /// A device whose work stays undone for a while.
    fn lagging() -> Self {
        Self::new(SimConfig { lag: 25, ..SimConfig::default() })
    }

    fn settle(&self) {
        self.sim.executor().synchronize_device(0, WAIT_FOREVER).unwrap();
        self.pinned.process_events().unwrap();
        assert_eq!(self.allocator.stats(0).unwrap().allocation.all.current, 0);
        assert_eq!(self.pinned.stats().active_bytes.current, 0);
        assert_eq!((self.allocator.check(), self.pinned.check()), (Ok(()), Ok(())));
        assert_eq!(self.sim.take_findings(), [] as [String; 0]);
    }
}

fn values(shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let list: Vec<f32> = (0..count).map(|n| ((n * 37 % 101) as f32 - 50.0) / 17.0).collect();
    Tensor::from_vec(list, shape, &Device::Cpu).unwrap()
}

fn assert_same(ours: &Tensor, theirs: &Tensor) {
    assert_eq!((ours.dims(), ours.dtype()), (theirs.dims(), theirs.dtype()));
    let [ours, theirs] = [ours, theirs].map(|tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap());
    for (at, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "element {at}: {a} and {b}");
    }
}

fn relu(pass: &Pass<'_>, x: &NpuTensor) -> Result<NpuTensor> {
    pass.on_host([x], x.shape(), |[x], y: &mut [f32]| {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x.max(0.0));
    })
}

fn matmul(pass: &Pass<'_>, a: &NpuTensor, b: &NpuTensor) -> Result<NpuTensor> {
    let (rows, inner, columns) = (a.dims()[0], a.dims()[1], b.dims()[1]);
    pass.on_host([a, b], (rows, columns), |[a, b], c: &mut [f32]| {
        for row in 0..rows {
            for column in 0..columns {
                c[row * columns + column] =
                    (0..inner).map(|at| a[row * inner + at] * b[at * columns + column]).sum();
            }
        }
    })
}

/// max(x w + b, 0): three steps, of which the first two leave their results on the device.
fn layer(npu: &Npu) -> Op3 {
    let op = npu.op3("layer", |pass, [x, w, b]| {
        let product = matmul(pass, x, w)?;
        let columns = w.dims()[1];
        let sum = pass.on_host([&product, b], product.shape(), |[product, bias], y: &mut [f32]| {
            for (at, y) in y.iter_mut().enumerate() {
                *y = product[at] + bias[at % columns];
            }
        })?;
        drop(product);
        relu(pass, &sum)
    });
    op.with_gradient(|[x, w, _b], result, gradient| {
        let gradient = (gradient * result.gt(0.0)?.to_dtype(DType::F32)?)?;
        let of_x = gradient.matmul(&w.t()?)?;
        let of_w = x.t()?.matmul(&gradient)?;
        Ok((Some(of_x), Some(of_w), Some(gradient.sum(0)?)))
    })
}

#[test]
fn results_are_candles_own_for_every_layout() {
    let machine = Machine::lagging();
    let x = values(&[6, 8, 5]);
    let layouts = [
        x.clone(),
        x.t().unwrap(),
        x.permute((2, 0, 1)).unwrap(),
        x.narrow(1, 2, 3).unwrap(),
        x.narrow(0, 1, 2).unwrap().transpose(0, 1).unwrap(),
        values(&[1, 5]).broadcast_as((4, 5)).unwrap(),
        values(&[4, 1]).broadcast_as((4, 5)).unwrap(),
        values(&[1]).reshape(()).unwrap(),
        values(&[0, 3]),
    ];
    for tensor in layouts {
        let ours = tensor.apply_op1(machine.npu.op1("relu", relu)).unwrap();
        assert_same(&ours, &tensor.relu().unwrap());
    }
    let (a, b) = (values(&[7, 9]), values(&[4, 9]).t().unwrap());
    let product = a.apply_op2(&b, machine.npu.op2("matmul", |pass, [a, b]| matmul(pass, a, b))).unwrap();
    assert_same(&product, &a.matmul(&b).unwrap());
    machine.settle();
}

#[test]
fn every_type_of_whole_bytes_passes_unchanged() {
    let machine = Machine::lagging();
    let types = [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::BF16,
        DType::F16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
    ];
    for dtype in types {
        let x = values(&[33]).abs().unwrap().to_dtype(dtype).unwrap();
        let op = machine.npu.op1("same", |pass, x| {
            // What a kernel would write: here the memory that was copied in is handed on.
            let y = pass.empty(x.dtype(), x.shape())?;
            assert_eq!((y.bytes(), y.dtype()), (x.bytes(), x.dtype()));
            assert!(!y.ptr().is_null() && y.ptr() != x.ptr());
            x_as_result(pass, x, y)
        });
        let y = x.apply_op1(op).unwrap();
        assert_eq!(y.dtype(), dtype);
        let [x, y] = [x, y].map(|tensor| tensor.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap());
        assert_eq!(x, y, "{dtype:?}");
    }
    // A scale has a byte too, although candle has no numbers of that type.
    let scales: Vec<u8> = (0..33).map(|n| n * 7).collect();
    let x = Tensor::from_raw_buffer(&scales, DType::F8E8M0, &[33], &Device::Cpu).unwrap();
    let y = x.apply_op1(machine.npu.op1("same", x_again)).unwrap();
    let (storage, _) = y.storage_and_layout();
    assert!(matches!(&*storage, Storage::Cpu(CpuStorage::F8E8M0(bytes)) if *bytes == scales));
    drop(storage);
    // A step for numbers of another type is refused, before it does anything.
    let op = machine.npu.op1("wrong", relu);
    let error = values(&[4]).to_dtype(DType::F64).unwrap().apply_op1(op).unwrap_err();
    assert!(error.to_string().contains("works on F32, and is given F64"), "{error}");
    machine.settle();
}

/// Copies bytes from one tensor to the other, as a kernel would.
fn x_as_result(pass: &Pass<'_>, x: &NpuTensor, mut y: NpuTensor) -> Result<NpuTensor> {
    macro_rules! copy {
        ($name:ty) => {
            pass.change_on_host::<$name, 1>(&mut y, [x], |y, [x]| y.copy_from_slice(x))?
        };
    }
    match x.dtype() {
        DType::U8 => copy!(u8),
        DType::U32 => copy!(u32),
        DType::I16 => copy!(i16),
        DType::I32 => copy!(i32),
        DType::I64 => copy!(i64),
        DType::BF16 => copy!(half::bf16),
        DType::F16 => copy!(half::f16),
        DType::F32 => copy!(f32),
        DType::F64 => copy!(f64),
        // No step on the host knows the type; the copy in and out is what is looked at.
        _ => return x_again(pass, x),
    }
    Ok(y)
}

fn x_again(pass: &Pass<'_>, x: &NpuTensor) -> Result<NpuTensor> {
    let y = pass.empty(x.dtype(), x.shape())?;
    pass.copy(x, &y)?;
    Ok(y)
}

#[test]
fn gradients_are_candles_own() {
    let machine = Machine::lagging();
    let [x, w, b] = [&[5, 6][..], &[6, 4], &[4]].map(|shape| Var::from_tensor(&values(shape)).unwrap());
    let ours = x.apply_op3(&w, &b, layer(&machine.npu)).unwrap();
    let theirs = x.matmul(&w).unwrap().broadcast_add(&b).unwrap().relu().unwrap();
    assert_same(&ours, &theirs);
    let gradients = [&ours, &theirs].map(|y| y.sqr().unwrap().sum_all().unwrap().backward().unwrap());
    for variable in [&x, &w, &b] {
        let [ours, theirs] = [0, 1].map(|at| gradients[at].get(variable).unwrap());
        assert_same(ours, theirs);
    }

    let npu = &machine.npu;
    let square = npu.op1("square", |pass, x| {
        pass.on_host([x], x.shape(), |[x], y: &mut [f32]| {
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x * x);
        })
    });
    let square = square.with_gradient(|x, _, gradient| Ok(Some(((x * 2.0)? * gradient)?)));
    let y = x.apply_op1(square).unwrap().sum_all().unwrap();
    let gradient = y.backward().unwrap();
    assert_same(gradient.get(&x).unwrap(), &(x.as_tensor() * 2.0).unwrap());

    let scale = npu.op2("scale", |pass, [x, by]| {
        pass.on_host([x, by], x.shape(), |[x, by], y: &mut [f32]| {
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x * by[0]);
        })
    });
    let scale = scale.with_gradient(|[x, by], _, gradient| {
        Ok((Some(gradient.broadcast_mul(by)?), Some((gradient * x)?.sum_all()?.reshape(1)?)))
    });
    let by = Var::from_tensor(&values(&[1])).unwrap();
    let gradient = x.apply_op2(&by, scale).unwrap().sum_all().unwrap().backward().unwrap();
    let theirs = x.broadcast_mul(&by).unwrap().sum_all().unwrap().backward().unwrap();
    for variable in [&x, &by] {
        assert_same(gradient.get(variable).unwrap(), theirs.get(variable).unwrap());
    }

    // Without a gradient there is an error, not a wrong answer.
    let error = x.apply_op1(npu.op1("relu", relu)).unwrap().sum_all().unwrap().backward().unwrap_err();
    assert!(error.to_string().contains("relu"), "{error}");
    machine.settle();
}

#[test]
fn what_a_step_drops_serves_the_next() {
    let machine = Machine::new(SimConfig::default());
    let x = values(&[1 << 20]);
    let op = machine.npu.op1("eight steps", |pass, x| {
        let mut y = relu(pass, x)?;
        for _ in 0..7 {
            y = relu(pass, &y)?;
        }
        Ok(y)
    });
    let y = x.apply_op1(op).unwrap();
    assert_same(&y, &x.relu().unwrap());
    // The input, and two results at a time: not nine.
    let peak = machine.allocator.stats(0).unwrap().requested_bytes.all.peak;
    assert_eq!(peak, 3 * (4 << 20));
    machine.settle();
}

#[test]
fn tensors_are_changed_in_place_where_they_lie() {
    let machine = Machine::lagging();
    let whole = values(&[6, 4]);
    let part = whole.narrow(1, 1, 2).unwrap();
    let wanted = (&part * 3.0).unwrap().copy().unwrap();
    let rest = whole.narrow(1, 3, 1).unwrap().copy().unwrap();
    let triple = machine.npu.inplace1("triple", |pass, x| {
        pass.change_on_host::<f32, 0>(x, [], |x, []| x.iter_mut().for_each(|x| *x *= 3.0))
    });
    part.inplace_op1(&triple).unwrap();
    assert_same(&part, &wanted);
    assert_same(&whole.narrow(1, 3, 1).unwrap(), &rest);

    let (a, b, c) =
        (values(&[3, 5]), values(&[5, 3]).t().unwrap(), values(&[5]).broadcast_as((3, 5)).unwrap());
    let wanted = ((&a + &b).unwrap() * &c).unwrap();
    let fused = machine.npu.inplace_n::<2, _>("add and multiply", |pass, x, [b, c]| {
        pass.change_on_host(x, [b, c], |x: &mut [f32], [b, c]| {
            for (at, x) in x.iter_mut().enumerate() {
                *x = (*x + b[at]) * c[at];
            }
        })
    });
    a.inplace_op3(&b, &c, &fused).unwrap();
    assert_same(&a, &wanted);
    let add = machine.npu.inplace_n::<1, _>("add", |pass, x, [b]| {
        pass.change_on_host(x, [b], |x: &mut [f32], [b]| x.iter_mut().zip(b).for_each(|(x, b)| *x += b))
    });
    let wanted = (&a + &c).unwrap();
    a.inplace_op2(&c, &add).unwrap();
    assert_same(&a, &wanted);

    // An operation that would leave another shape is refused, and the tensor is as it was.
    let wrong = machine.npu.inplace1("wrong", |pass, x| {
        *x = pass.empty(DType::F32, 3)?;
        Ok(())
    });
    let error = a.inplace_op1(&wrong).unwrap_err();
    assert!(error.to_string().contains("neither the type nor the shape"), "{error}");
    assert_same(&a, &wanted);
    machine.settle();
}

#[test]
fn another_shape_has_as_many_elements() {
    let machine = Machine::new(SimConfig::default());
    // 2^64 elements are not none.
    let shapes: [&[usize]; 3] = [&[1 << 32, 1 << 32], &[5], &[usize::MAX, 2]];
    for shape in shapes {
        let op = machine.npu.op1("reshape", move |pass, x| x_again(pass, x)?.reshape(shape));
        for x in [values(&[0, 3]), values(&[2, 2])] {
            let error = x.apply_op1_no_bwd(&op).unwrap_err().to_string();
            assert!(error.contains("numbers of elements differ"), "{error}");
        }
    }
    let op = machine.npu.op1("reshape", |pass, x| x_again(pass, x)?.reshape((4, 1)));
    assert_eq!(values(&[2, 2]).apply_op1_no_bwd(&op).unwrap().dims(), [4, 1]);
    machine.settle();
}

#[test]
fn out_of_memory_is_an_error_with_the_report_and_survived() {
    let machine = Machine::new(SimConfig { capacity: 32 << 20, ..SimConfig::default() });
    let large = values(&[3 << 20]);
    let error = large.apply_op1_no_bwd(&machine.npu.op1("keeps all", |pass, x| {
        let kept = [relu(pass, x)?, relu(pass, x)?];
        relu(pass, &kept[1])
    }));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("out of memory on device 0"), "{error}");
    machine.settle();
    let error = large.apply_op1_no_bwd(
        &machine.npu.op1("asks for too much", |pass, x| pass.empty(x.dtype(), (usize::MAX, 8))),
    );
    assert!(error.is_err());
    let small = values(&[1 << 20]);
    assert_same(&small.apply_op1(machine.npu.op1("relu", relu)).unwrap(), &small.relu().unwrap());
    machine.settle();
}

#[test]
fn threads_share_a_device() {
    let machine = Machine::lagging();
    std::thread::scope(|scope| {
        for thread in 1..5 {
            let npu = machine.npu.clone();
            scope.spawn(move || {
                for round in 1..10 {
                    let (x, w, b) = (values(&[round, thread]), values(&[thread, 7]), values(&[7]));
                    let ours = x.apply_op3(&w, &b, layer(&npu)).unwrap();
                    let theirs = x.matmul(&w).unwrap().broadcast_add(&b).unwrap().relu().unwrap();
                    assert_same(&ours, &theirs);
                }
            });
        }
    });
    machine.settle();
}
