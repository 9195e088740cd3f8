//! A program whose inputs and outputs are on a device.

use std::collections::HashMap;

use fourfold_executor::device::{Buffer, Device};
use fourfold_executor::{Machine, Preparation, PreparedProgram, Refused};
use fourfold_ir::Value;

use super::fixture::Fixture;

/// A program's inputs and outputs on a device.
pub struct Placed<'a> {
    pub fixture: &'a Fixture,
    pub device: &'a Device,
    pub buffers: HashMap<Value, Buffer>,
}

impl<'a> Placed<'a> {
    pub fn new(fixture: &'a Fixture, device: &'a Device) -> Placed<'a> {
        let mut buffers = HashMap::new();
        for &input in &fixture.program.module().inputs {
            let bytes = fixture.tensors[fixture.program.module().name_of(input)].bytes();
            let buffer = device.alloc(bytes.len()).unwrap();
            device.stream().upload(&buffer, 0, bytes).unwrap();
            buffers.insert(input, buffer);
        }
        let y = device.alloc(fixture.expected("y").bytes().len()).unwrap();
        device.stream().fill(&y, 0, y.len(), 0xFF).unwrap();
        device.synchronize().unwrap();
        buffers.insert(fixture.value("y"), y);
        Placed { fixture, device, buffers }
    }

    pub fn addresses(&self) -> HashMap<Value, u64> {
        self.buffers.iter().map(|(value, buffer)| (*value, buffer.address())).collect()
    }

    pub fn prepare(
        &self,
        addresses: &HashMap<Value, u64>,
        workspace: Option<(u64, u64)>,
    ) -> Result<PreparedProgram, Refused> {
        let machine = Machine::new(self.device, &self.fixture.kernels);
        let Fixture { program, partition, .. } = self.fixture;
        let mut preparation = Preparation::of_program(program, partition, &self.fixture.symbols(), &machine)?
            .bind_all(addresses.clone());
        if let Some((address, bytes)) = workspace {
            preparation = preparation.workspace(address, bytes);
        }
        // SAFETY: the addresses are those of buffers that outlive the result, or are refused.
        unsafe { preparation.build() }
    }

    pub fn y(&self) -> Vec<u8> {
        let buffer = &self.buffers[&self.fixture.value("y")];
        let mut bytes = vec![0; buffer.len()];
        self.device.stream().download(buffer, 0, &mut bytes).unwrap();
        bytes
    }
}
