//! Measures parsing in bytes per second, and verifying plus partitioning, and normalizing, programs of 1k, 10k and 100k
//! ops.

use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fourfold::DEFAULT_TARGET;
use fourfold::codegen::capabilities;
use fourfold::ir::{text, verify};
use fourfold::scheduler::{NormalizeOptions, normalize_for, partition};
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

fn plan(criterion: &mut Criterion) {
    let capabilities = capabilities(DEFAULT_TARGET).expect("the default target exists");
    for ops in [1_000, 10_000, 100_000] {
        let module = text::parse(&layers(ops)).expect("the program is valid").module;
        let mut group = criterion.benchmark_group("plan");
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(4));
        group.throughput(Throughput::Elements(module.ops.len() as u64));
        group.bench_function(BenchmarkId::new("verify + partition", ops), |bencher| {
            bencher.iter_batched(
                || module.clone(),
                |module| partition(&verify(module).expect("the program is valid"), &capabilities),
                BatchSize::LargeInput,
            );
        });
        let program = verify(module).expect("the program is valid");
        group.bench_function(BenchmarkId::new("normalize", ops), |bencher| {
            bencher.iter_with_large_drop(|| {
                normalize_for(&program, &NormalizeOptions::default(), &capabilities)
            });
        });
        group.finish();
    }
}

criterion_group!(benches, parse, plan);
criterion_main!(benches);
