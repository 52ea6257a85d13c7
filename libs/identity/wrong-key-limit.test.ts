import { expect, test } from 'vitest';
import { createWrongKeyLimit, toAddressGroup } from './wrong-key-limit.ts';

function setUp(perMinute: number) {
  const state = { nowMs: 0 };
  const { take } = createWrongKeyLimit(perMinute, () => state.nowMs);
  const takes = (address: string, times = 1): number => {
    let taken = 0;
    for (let made = 0; made < times; made += 1) {
      try {
        take(address);
        taken += 1;
      } catch {
        // A separate test covers the error.
      }
    }
    return taken;
  };
  return { state, take, takes };
}

test('an address has its attempts at once, and they come back with the time', () => {
  const { state, take, takes } = setUp(30);
  expect(takes('192.0.2.1', 100)).toBe(30);
  expect(() => take('192.0.2.1')).toThrow(
    expect.objectContaining({ kind: 'rate_limited', code: 'too_many_failed_attempts', retryAfterMs: 2_000 }),
  );
  state.nowMs = 4_000;
  expect(takes('192.0.2.1', 100)).toBe(2);
  state.nowMs = 3_600_000;
  expect(takes('192.0.2.1', 100)).toBe(30);
});

test('other addresses are not slowed, and a client of IPv6 is its whole /64', () => {
  const { takes } = setUp(10);
  expect(takes('2001:db8::1', 6) + takes('2001:db8:0:0:ffff::2', 6)).toBe(10);
  expect(takes('2001:db8:0:1::1', 6)).toBe(6);
  expect(takes('192.0.2.1', 6) + takes('192.0.2.2', 6)).toBe(12);
});

test.each([
  ['2001:db8::1', '2001:db8:0:0::/64'],
  ['2001:0db8:0000:0000:1:2:3:4', '2001:db8:0:0::/64'],
  ['::1', '0:0:0:0::/64'],
  ['fe80::1%eth0', 'fe80:0:0:0::/64'],
  ['1:2:3:4:5:6:7:8', '1:2:3:4::/64'],
  ['1:2:3::', '1:2:3:0::/64'],
  ['192.0.2.1', '192.0.2.1'],
  ['', ''],
])('%j counts as %j', (address, group) => {
  expect(toAddressGroup(address)).toBe(group);
});

test('an attempt with a key that was right after all is given back', () => {
  const { take, takes } = setUp(2);
  for (let made = 0; made < 5; made += 1) take('192.0.2.1')();
  expect(takes('192.0.2.1', 5)).toBe(2);
});

test('0 slows nobody', () => {
  expect(setUp(0).takes('192.0.2.1', 10_000)).toBe(10_000);
});
