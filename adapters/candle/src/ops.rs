//! candle's custom operations, from closures.

use core::fmt;

use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Error, InplaceOp1, InplaceOp2, InplaceOp3, Layout, Result,
    Shape, Tensor,
};

use crate::npu::{Npu, NpuTensor, Pass};

/// What every operation has.
struct Common {
    npu: Npu,
    name: &'static str,
}

/// Copies a result back.
fn finish(pass: &Pass<'_>, result: &NpuTensor) -> Result<(CpuStorage, Shape)> {
    Ok((pass.download(result)?, result.shape().clone()))
}

macro_rules! shows_its_name {
    ($($name:ident $(<const $n:ident: usize>)?),*) => {
        $(
            impl $(<const $n: usize>)? fmt::Debug for $name $(<$n>)? {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.debug_struct(stringify!($name)).field("name", &self.common.name).finish_non_exhaustive()
                }
            }
        )*
    };
}
shows_its_name!(Op1, Op2, Op3, Inplace1, InplaceN<const N: usize>);

type Gradient1 = Box<dyn Fn(&Tensor, &Tensor, &Tensor) -> Result<Option<Tensor>> + Send + Sync>;

type Forward1 = Box<dyn Fn(&Pass<'_>, &NpuTensor) -> Result<NpuTensor> + Send + Sync>;

/// An operation with one input; made by [`Npu::op1`].
pub struct Op1 {
    common: Common,
    forward: Forward1,
    gradient: Option<Gradient1>,
}

impl Op1 {
    pub(crate) fn new<F>(npu: Npu, name: &'static str, forward: F) -> Self
    where
        F: Fn(&Pass<'_>, &NpuTensor) -> Result<NpuTensor> + Send + Sync + 'static,
    {
        Self { common: Common { npu, name }, forward: Box::new(forward), gradient: None }
    }

    /// The gradient of the input, from the input, the result and the gradient of the result. Without one the operation
    /// cannot be differentiated.
    #[must_use]
    pub fn with_gradient<F>(mut self, gradient: F) -> Self
    where
        F: Fn(&Tensor, &Tensor, &Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    {
        self.gradient = Some(Box::new(gradient));
        self
    }
}

impl CustomOp1 for Op1 {
    fn name(&self) -> &'static str {
        self.common.name
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let pass = self.common.npu.pass();
        let input = pass.upload(storage, layout)?;
        finish(&pass, &(self.forward)(&pass, &input)?)
    }

    fn bwd(&self, arg: &Tensor, res: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
        match &self.gradient {
            Some(gradient) => gradient(arg, res, grad_res),
            None => Err(Error::BackwardNotSupported { op: self.common.name }),
        }
    }
}

/// The gradients of two inputs.
type Two = (Option<Tensor>, Option<Tensor>);
type Gradient2 = Box<dyn Fn([&Tensor; 2], &Tensor, &Tensor) -> Result<Two> + Send + Sync>;

/// An operation with two inputs; made by [`Npu::op2`].
pub struct Op2 {
    common: Common,
    forward: Forward2,
    gradient: Option<Gradient2>,
}

type Forward2 = Box<dyn Fn(&Pass<'_>, [&NpuTensor; 2]) -> Result<NpuTensor> + Send + Sync>;

impl Op2 {
    pub(crate) fn new<F>(npu: Npu, name: &'static str, forward: F) -> Self
    where
        F: Fn(&Pass<'_>, [&NpuTensor; 2]) -> Result<NpuTensor> + Send + Sync + 'static,
    {
        Self { common: Common { npu, name }, forward: Box::new(forward), gradient: None }
    }

    /// The gradients of the inputs, from the inputs, the result and the gradient of the result.
    #[must_use]
    pub fn with_gradient<F>(mut self, gradient: F) -> Self
    where
        F: Fn([&Tensor; 2], &Tensor, &Tensor) -> Result<Two> + Send + Sync + 'static,
    {
        self.gradient = Some(Box::new(gradient));
        self
    }
}

impl CustomOp2 for Op2 {
    fn name(&self) -> &'static str {
        self.common.name
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let pass = self.common.npu.pass();
        let inputs = [pass.upload(s1, l1)?, pass.upload(s2, l2)?];
        finish(&pass, &(self.forward)(&pass, inputs.each_ref())?)
    }

    fn bwd(&self, arg1: &Tensor, arg2: &Tensor, res: &Tensor, grad_res: &Tensor) -> Result<Two> {
        match &self.gradient {
            Some(gradient) => gradient([arg1, arg2], res, grad_res),
            None => Err(Error::BackwardNotSupported { op: self.common.name }),
        }
    }
}

/// The gradients of three inputs.
type Three = (Option<Tensor>, Option<Tensor>, Option<Tensor>);
type Gradient3 = Box<dyn Fn([&Tensor; 3], &Tensor, &Tensor) -> Result<Three> + Send + Sync>;

/// An operation with three inputs; made by [`Npu::op3`].
pub struct Op3 {
    common: Common,
    forward: Forward3,
    gradient: Option<Gradient3>,
}

type Forward3 = Box<dyn Fn(&Pass<'_>, [&NpuTensor; 3]) -> Result<NpuTensor> + Send + Sync>;

impl Op3 {
    pub(crate) fn new<F>(npu: Npu, name: &'static str, forward: F) -> Self
    where
        F: Fn(&Pass<'_>, [&NpuTensor; 3]) -> Result<NpuTensor> + Send + Sync + 'static,
    {
        Self { common: Common { npu, name }, forward: Box::new(forward), gradient: None }
    }

    /// The gradients of the inputs, from the inputs, the result and the gradient of the result.
    #[must_use]
    pub fn with_gradient<F>(mut self, gradient: F) -> Self
    where
        F: Fn([&Tensor; 3], &Tensor, &Tensor) -> Result<Three> + Send + Sync + 'static,
    {
        self.gradient = Some(Box::new(gradient));
        self
    }
}

impl CustomOp3 for Op3 {
    fn name(&self) -> &'static str {
        self.common.name
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let pass = self.common.npu.pass();
        let inputs = [pass.upload(s1, l1)?, pass.upload(s2, l2)?, pass.upload(s3, l3)?];
        finish(&pass, &(self.forward)(&pass, inputs.each_ref())?)
    }

    fn bwd(
        &self,
        arg1: &Tensor,
        arg2: &Tensor,
        arg3: &Tensor,
        res: &Tensor,
        grad_res: &Tensor,
    ) -> Result<Three> {
        match &self.gradient {
            Some(gradient) => gradient([arg1, arg2, arg3], res, grad_res),
            None => Err(Error::BackwardNotSupported { op: self.common.name }),
        }
    }
}

type Change1 = Box<dyn Fn(&Pass<'_>, &mut NpuTensor) -> Result<()> + Send + Sync>;

/// An operation that changes its tensor; made by [`Npu::inplace1`].
pub struct Inplace1 {
    common: Common,
    change: Change1,
}

impl Inplace1 {
    pub(crate) fn new<F>(npu: Npu, name: &'static str, change: F) -> Self
    where
        F: Fn(&Pass<'_>, &mut NpuTensor) -> Result<()> + Send + Sync + 'static,
    {
        Self { common: Common { npu, name }, change: Box::new(change) }
    }
}

impl InplaceOp1 for Inplace1 {
    fn name(&self) -> &'static str {
        self.common.name
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let pass = self.common.npu.pass();
        let mut tensor = pass.upload(storage, layout)?;
        (self.change)(&pass, &mut tensor)?;
        pass.download_to(&tensor, storage, layout)
    }
}

type Change<const N: usize> =
    Box<dyn Fn(&Pass<'_>, &mut NpuTensor, [&NpuTensor; N]) -> Result<()> + Send + Sync>;

/// An operation that changes its tensor and reads others; made by [`Npu::inplace_n`].
pub struct InplaceN<const N: usize> {
    common: Common,
    change: Change<N>,
}

impl<const N: usize> InplaceN<N> {
    pub(crate) fn new<F>(npu: Npu, name: &'static str, change: F) -> Self
    where
        F: Fn(&Pass<'_>, &mut NpuTensor, [&NpuTensor; N]) -> Result<()> + Send + Sync + 'static,
    {
        Self { common: Common { npu, name }, change: Box::new(change) }
    }
}

impl<const N: usize> InplaceN<N> {
    fn run(&self, target: (&mut CpuStorage, &Layout), sources: [(&CpuStorage, &Layout); N]) -> Result<()> {
        let (storage, layout) = target;
        let pass = self.common.npu.pass();
        let mut tensor = pass.upload(storage, layout)?;
        let inputs: Result<Vec<_>> =
            sources.iter().map(|(storage, layout)| pass.upload(storage, layout)).collect();
        let inputs = inputs?;
        (self.change)(&pass, &mut tensor, core::array::from_fn(|at| &inputs[at]))?;
        pass.download_to(&tensor, storage, layout)
    }
}

impl InplaceOp2 for InplaceN<1> {
    fn name(&self) -> &'static str {
        self.common.name
    }

    fn cpu_fwd(&self, s1: &mut CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<()> {
        self.run((s1, l1), [(s2, l2)])
    }
}

impl InplaceOp3 for InplaceN<2> {
    fn name(&self) -> &'static str {
        self.common.name
    }

    fn cpu_fwd(
        &self,
        s1: &mut CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<()> {
        self.run((s1, l1), [(s2, l2), (s3, l3)])
    }
}
