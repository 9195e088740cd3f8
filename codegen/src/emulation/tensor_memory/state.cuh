// State of an emulated launch, shared by the device functions and the host. The host reads it after each launch.
#ifndef FOURFOLD_EMULATION_STATE
#define FOURFOLD_EMULATION_STATE

#include <cstdint>

namespace fourfold_emulation {

// The limits of one SM: lanes and columns of tensor memory, 32 bits each (PTX ISA, "Tensor Memory").
constexpr uint32_t kLanes = 128, kColumns = 512;

// The largest number of SMs, and of CTAs that run at a time.
constexpr uint32_t kMaxSms = 192, kMaxCtas = 1024;

// The largest number of instructions that a warp queues between two elect.sync.
constexpr uint32_t kQueue = 64;

// The numbers of the faults. docs/internals/emulation.md lists them.
enum Fault : uint32_t {
  kNone = 0,
  kTooManySms = 1,             // an SM's number
  kTooManyCtas = 2,            // a CTA's number
  kOccupied = 3,               // the SM
  kColumnsOfAllocation = 4,    // the columns
  kAddressOfDealloc = 5,       // the address, the columns
  kBeyondAllocation = 6,       // the first column, the columns, the allocated columns
  kLaneOfAddress = 7,          // the address
  kLaneOfWarp = 8,             // the address, the warp
  kSharedDescriptor = 9,       // the low and high words, a bit or field
  kInstructionDescriptor = 10, // the descriptor, a field
  kScaleAddress = 11,          // the address, the descriptor
  kPartialWarp = 12,           // the mask
  kQueueFull = 13,             // the instructions
  kForeignQueue = 14,          // the warp, the queue's warp
  kStuck = 15,                 // the barrier, the parity
  kNoPeer = 16,                // the CTA
  kGroup = 17,                 // .cta_group, the CTAs of the cluster
  kMulticast = 18,             // the mask, the CTAs of the cluster
  kScalesDiffer = 19,          // the row, the column, the copy
  kBeyondShared = 20,          // the offset, the bytes of shared memory
};

struct State {
  // The first fault: its number and what it says of itself.
  uint32_t fault, values[3];
  uint32_t block[3], thread;
  // clusterlaunchcontrol: the clusters handed out, and the CTAs that are done.
  uint32_t handed_out, done;
  // For each SM: whether a CTA owns its tensor memory, and the allocated columns.
  uint32_t owner[kMaxSms], columns[kMaxSms];
  // For each CTA: its SM + 1 while it owns tensor memory.
  uint32_t sm_of[kMaxCtas];
};

}  // namespace fourfold_emulation

#endif
