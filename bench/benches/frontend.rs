//! Measures parsing in bytes per second, and verifying plus partitioning programs of 1k, 10k and 100k ops.

use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fourfold::ir::{text, verify};
use fourfold::{Backend, DEFAULT_TARGET, DeviceChoice, Options};
use fourfold_bench::layers;

fn parse(criterion: &mut Criterion) {
    let source = layers(100_000);
    let mut group = criterion.benchmark_group("parse");
    group.sample_size(10).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(5));
    group.throughput(Throughput::Bytes(source.len() as u64));
    group.bench_function("100k ops", |bencher| {
        bencher.iter_with_large_drop(|| text::parse(&source).expect("the program is valid"));
    });
    group.finish();
}

fn verify_and_partition(criterion: &mut Criterion) {
    let backend = Backend::new(&Options::default().target(DEFAULT_TARGET).device(DeviceChoice::None))
        .expect("the default target exists");
    let mut group = criterion.benchmark_group("verify + partition");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(4));
    for ops in [1_000, 10_000, 100_000] {
        let module = text::parse(&layers(ops)).expect("the program is valid").module;
        group.throughput(Throughput::Elements(module.ops.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(ops), |bencher| {
            bencher.iter_batched(
                || module.clone(),
                |module| backend.plan(verify(module).expect("the program is valid")),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, parse, verify_and_partition);
criterion_main!(benches);
