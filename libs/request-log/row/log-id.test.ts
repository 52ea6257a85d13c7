import { expect, test } from 'vitest';
import { fromLogId, lowestLogUuid, newLogUuid, getLogUuidTime, toLogId, utcDay } from './log-id.ts';

const noonMs = Date.UTC(2026, 10, 21, 12);

test('an id keeps the millisecond at which its row was recorded', () => {
  expect(getLogUuidTime(newLogUuid(noonMs + 7, 1))).toBe(noonMs + 7);
  expect(getLogUuidTime(newLogUuid(0, 1))).toBe(0);
});

test('ids sort by time and, inside a millisecond, by sequence', () => {
  const ids = [1, 2, 3, 255, 256, 65_536, 20_000_000].map((sequence) => newLogUuid(noonMs, sequence));
  ids.push(newLogUuid(noonMs + 1, 1));
  expect(ids.toSorted()).toEqual(ids);
});

test('a public id is log_ and 32 hexadecimal digits, and leads back to its row', () => {
  const uuid = newLogUuid(noonMs, 1);
  expect(toLogId(uuid)).toMatch(/^log_[0-9a-f]{32}$/);
  expect(fromLogId(toLogId(uuid))).toBe(uuid);
});

test.each([
  ['', 'empty'],
  ['log_', 'without digits'],
  ['log_019ab1e1c0007000800000000000000', 'too short'],
  ['log_019ab1e1c000700080000000000000000', 'too long'],
  ['log_019AB1E1C00070008000000000000000', 'in capitals'],
  ['log_019ab1e1c00040008000000000000000', 'a random UUID'],
  ['log_019ab1e1c00070000000000000000000', 'of another variant'],
  ['log_ffffffffffff70008000000000000000', 'of the year 10889'],
  ['019ab1e1c00070008000000000000000', 'without the prefix'],
])('%j is no id (%s)', (id) => {
  expect(fromLogId(id)).toBeUndefined();
});

test('the lowest id of a millisecond parts the rows before it from its own', () => {
  expect(newLogUuid(noonMs - 1, 2 ** 31) < lowestLogUuid(noonMs)).toBe(true);
  expect(newLogUuid(noonMs, 0) >= lowestLogUuid(noonMs)).toBe(true);
  expect(getLogUuidTime(lowestLogUuid(noonMs))).toBe(noonMs);
});

test('the day is the one in UTC', () => {
  expect(utcDay(Date.UTC(2026, 10, 21) - 1)).toBe('2026-11-20');
  expect(utcDay(Date.UTC(2026, 10, 21))).toBe('2026-11-21');
});
