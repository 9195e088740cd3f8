//! The functions that do not multiply: allocation, accesses of tensor memory, commits, launch control, loads of CTA
//! pairs, and conversions to e2m1.

use std::collections::BTreeSet;

use fourfold::ir::numeric;
use fourfold_tests::random::Random;

use super::device::{COLUMNS, Device, Function, LANES, POISON, Registers, Threads};

/// Operations of barriers, with the numbers that `simulate.cc` gives them.
const ARRIVE: u32 = 1;
const COMPLETE_TX: u32 = 2;
const COMPLETE_OWN_TX: u32 = 3;
const STORE_ASYNC: u32 = 4;
const INIT: u32 = 5;
const INVAL: u32 = 6;
const EXPECT_TX: u32 = 7;
const FENCE_ASYNC: u32 = 8;
const FENCE_CLUSTER: u32 = 9;

/// Returns an address of shared memory of a CTA of the cluster.
fn in_cluster(offset: u32, rank: u32) -> u32 {
    offset | rank << 24
}

/// Returns the operations of barriers, without fences.
fn operations(device: &mut Device) -> Vec<[u32; 3]> {
    let state = device.state();
    assert_eq!((state.fault, state.misused), (0, 0));
    state.events.into_iter().filter(|event| ![FENCE_ASYNC, FENCE_CLUSTER].contains(&event[0])).collect()
}

#[test]
fn tensor_memory_is_allocated_and_cleared() {
    let mut device = Device::start();
    for columns in [32, 64, 128, 256, 512] {
        for group in [1, 2] {
            let registers = Registers::new(group);
            device.reset(&registers);
            // Stands for the state that an earlier kernel has left.
            for sm in registers.sm {
                device.write_tensor(sm, 0, &vec![0; COLUMNS * LANES]);
            }
            device.write_shared(0, 64, &[0xAA; 16]);
            device.alloc((1 << group) - 1, columns, group);
            let state = device.state();
            let addresses = device.read_shared(0, 64, 16);
            assert_eq!(addresses, [[0; 4], [0xAA; 4], [0xAA; 4], [0xAA; 4]].concat());
            for cta in 0..group as usize {
                let sm = registers.sm[cta];
                let of = (state.owner[sm as usize], state.columns[sm as usize], state.sm_of[cta]);
                assert_eq!((state.fault, of), (0, (cta as u32 + 1, columns, sm + 1)));
                assert!(device.read_tensor(sm).iter().all(|word| *word == POISON));
                device.write_tensor(sm, 0, &vec![0; COLUMNS * LANES]);
            }
            let threads = Threads { ctas: (1 << group) - 1, warp: 0, lanes: u32::MAX };
            device.call(Function::Dealloc, threads, &[0, columns.into(), group.into()]);
            let state = device.state();
            assert_eq!((state.fault, state.done), (0, 0), "the last CTA resets the count");
            for cta in 0..group as usize {
                let sm = registers.sm[cta];
                assert_eq!((state.owner[sm as usize], state.sm_of[cta]), (0, 0));
                assert!(device.read_tensor(sm).iter().all(|word| *word == POISON));
            }
        }
    }
}

#[test]
fn a_warp_accesses_its_own_lanes() {
    let mut device = Device::start();
    let registers = Registers::new(1);
    device.reset(&registers);
    device.alloc(1, 256, 1);
    for function in [Function::LoadAddress, Function::StoreAddress] {
        for warp in 0..8_u32 {
            for (column, count) in [(0, 128), (7, 1), (224, 32)] {
                let lanes = warp % 4 * 32;
                let arguments = [u64::from(lanes << 16 | column), count];
                let places = device.call(function, Threads::warp(0, warp), &arguments);
                let first = (registers.sm[0] as usize * COLUMNS + column as usize) * LANES + lanes as usize;
                assert_eq!(places, (0..32).map(|lane| (first + lane) as u64).collect::<Vec<_>>());
            }
        }
    }
    assert_eq!(device.state().fault, 0);
}

#[test]
fn commits_arrive_at_the_barriers_of_the_mask() {
    let mut device = Device::start();
    let thread = Threads { ctas: 2, ..Threads::warp(1, 1) }.first_lane();
    for (mask, multicast, expected) in [
        (0, 0, vec![[ARRIVE, 128, 1]]),
        (1, 1, vec![[ARRIVE, in_cluster(128, 0), 1]]),
        (2, 1, vec![[ARRIVE, in_cluster(128, 1), 1]]),
        (3, 1, vec![[ARRIVE, in_cluster(128, 0), 1], [ARRIVE, in_cluster(128, 1), 1]]),
    ] {
        device.reset(&Registers::new(2));
        device.call(Function::Commit, thread, &[128, mask, 2, multicast]);
        assert_eq!(operations(&mut device), expected);
        assert_eq!(device.state().events[0][0], FENCE_ASYNC, "the fence precedes arrivals");
    }
}

/// A third of the clusters begins, at most as many as fit. The others are handed out once each.
#[test]
fn each_cluster_runs_once() {
    let mut device = Device::start();
    let thread = Threads::warp(0, 1).first_lane();
    for (clusters, extents, sm_count) in [
        ([7, 3, 2], [1, 1, 1], 132),
        ([5, 4, 1], [2, 1, 1], 132),
        ([64, 5, 2], [1, 2, 1], 132),
        ([1, 1, 1], [1, 1, 1], 132),
        ([2, 1, 1], [1, 1, 1], 1),
    ] {
        let size = extents.iter().product();
        let of = Registers { clusters, cluster_extents: extents, sm_count, ..Registers::new(size) };
        device.reset(&of);
        let all: u32 = clusters.iter().product();
        let mut begun = 0;
        let mut ran = BTreeSet::new();
        for number in 0..all {
            let cluster = [
                number % clusters[0],
                number / clusters[0] % clusters[1],
                number / clusters[0] / clusters[1],
            ];
            device.set(&Registers { cluster, ..of });
            if device.call(Function::Enter, thread, &[]) == [1] {
                begun += 1;
                ran.insert([cluster[0] * extents[0], cluster[1] * extents[1], cluster[2] * extents[2]]);
            }
        }
        assert_eq!(begun, all.div_ceil(3).min((sm_count / size).max(1)));
        assert_eq!(ran.len() as u32, begun);
        for multicast in [0, u64::from(size == 2)] {
            device.reset(&of);
            let mut ran = ran.clone();
            for attempt in 0..all - begun + 2 {
                device.call(Function::TryCancel, thread, &[4096, 256, multicast]);
                let answer = device.read_shared(0, 4096, 16);
                let words: Vec<u32> =
                    answer.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
                if multicast == 1 {
                    assert_eq!(device.read_shared(1, 4096, 16), answer);
                }
                if attempt < all - begun {
                    assert_eq!(words[3], 1);
                    assert!(ran.insert([words[0], words[1], words[2]]), "a cluster runs once: {words:?}");
                } else {
                    assert_eq!(words, [0; 4]);
                }
            }
            assert_eq!(ran.len() as u32, all);
            let expected = match multicast {
                0 => vec![[COMPLETE_OWN_TX, 256, 16]],
                _ => vec![[STORE_ASYNC, in_cluster(256, 0), 16], [STORE_ASYNC, in_cluster(256, 1), 16]],
            };
            assert_eq!(operations(&mut device), expected.repeat((all - begun + 2) as usize));
            assert_eq!(device.state().handed_out, all - begun + 2);
        }
    }
}

#[test]
fn loads_of_a_pair_reach_the_ctas_of_the_mask() {
    let mut device = Device::start();
    let mut random = Random::new(0x10AD);
    for own in [0, 1] {
        for mask in 1..4_u32 {
            device.reset(&Registers::new(2));
            let thread = Threads::warp(own, 2).first_lane();
            let barrier = device.call(Function::BeginLoad, thread, &[256])[0];
            // The load itself writes shared memory of its CTA.
            let bytes: Vec<u8> = (0..256).map(|_| random.below(256) as u8).collect();
            device.write_shared(own, 8192, &bytes);
            device.call(Function::FinishLoad, thread, &[8192, 256, 128, mask.into()]);
            let barrier = barrier as u32;
            let mut expected = vec![[INIT, barrier, 1], [EXPECT_TX, barrier, 256], [INVAL, barrier, 0]];
            for rank in 0..2 {
                let has = rank == own || mask >> rank & 1 == 1;
                let found = device.read_shared(rank, 8192, 256);
                assert_eq!(found, if has { bytes.clone() } else { vec![0xFF; 256] }, "CTA {rank}");
                if mask >> rank & 1 == 1 {
                    // The barrier of the even CTA counts the bytes of both.
                    expected.push([COMPLETE_TX, in_cluster(128, 0), 256]);
                }
            }
            assert_eq!(operations(&mut device), expected);
            assert_eq!(device.state().unwritten, 0);
        }
    }
}

#[test]
fn conversions_to_e2m1_round_to_nearest_even() {
    let mut device = Device::start();
    let mut random = Random::new(0xE2_31);
    let mut numbers = vec![f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 0.0, -0.0];
    // The bounds of codes, and their neighbours.
    for quarters in 0..=28_u8 {
        let bound = f32::from(quarters) / 4.0;
        for x in [bound, bound.next_up(), bound.next_down()] {
            numbers.extend([x, -x]);
        }
    }
    numbers.extend((0..20_000).map(|_| f32::from_bits(random.bits() as u32)));
    numbers.extend((0..20_000).map(|_| (random.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0) * 8.0));
    let pairs: Vec<[f32; 2]> = numbers.iter().zip(numbers.iter().rev()).map(|(x, y)| [*x, *y]).collect();
    for (pair, got) in pairs.iter().zip(device.e2m1x2(&pairs)) {
        // NaN becomes the largest positive number ("cvt").
        let code = |x: f32| u32::from(if x.is_nan() { 7 } else { numeric::e2m1_from_f32(x) });
        assert_eq!(got, code(pair[0]) << 4 | code(pair[1]), "{pair:?}");
    }
    let arguments = [1.5_f32, -6.0].map(|x| u64::from(x.to_bits()));
    assert_eq!(device.call(Function::E2m1x2, Threads::warp(0, 0).first_lane(), &arguments), [0x3F]);
}
