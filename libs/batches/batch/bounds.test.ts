import { expect, test } from 'vitest';
import { CreateBatchRequest, ResumeBatchRequest } from '#libs/contracts/batches/batches.ts';
import { exceedsErrorRate, readBounds, requireRaised, withBounds } from './bounds.ts';

const running = { status: 'in_progress' as const, paused_at: null, bound_reached: null, completed: 0, failed: 0 };
const request = (options: object) =>
  CreateBatchRequest.safeParse({
    input_file_id: 'file-1',
    endpoint: '/v1/embeddings',
    completion_window: '24h',
    gateway_options: options,
  });

test.each([
  { max_cost: 0 },
  { max_cost: '0.00' },
  { max_cost: -1 },
  { max_cost: '1e3' },
  { max_cost: 'five' },
  { max_cost: 1e12 },
  { max_error_rate: 1.1 },
  { max_error_rate: -0.1 },
  { max_error_rate: '0.5' },
  { max_error_rate: 0.5, max_error_rate_after: 0 },
  { max_error_rate_after: 10 },
  { on_bound: 'cancel' },
  { max_cost: 1, on_bound: 'stop' },
])('impossible bounds are refused: %j', (options) => {
  expect(request(options).success).toBe(false);
});

test('amounts are numbers or decimals, and are stored as exact decimals', () => {
  const stored = (max_cost: unknown) => request({ max_cost }).data?.gateway_options.max_cost;
  expect([stored(20), stored(0.1), stored(1e-7), stored('12.50')]).toEqual(['20', '0.1', '0.0000001', '12.5']);
  expect(request({ max_cost: 1, 'x-gateway-on-bound': 'cancel' }).data?.gateway_options).toEqual({
    max_cost: '1',
    on_bound: 'cancel',
  });
  expect(ResumeBatchRequest.parse({ max_cost: '030', max_error_rate: null })).toEqual({
    max_cost: '30',
    max_error_rate: null,
  });
});

test('the error rate counts once there are enough results, and only while the batch runs', () => {
  const batch = { ...running, gateway_options: { max_error_rate: 0.25, max_error_rate_after: 8 } };
  expect(exceedsErrorRate(batch, { completed: 0, failed: 7 })).toBe(false);
  expect(exceedsErrorRate(batch, { completed: 6, failed: 2 })).toBe(false); // as high as allowed
  expect(exceedsErrorRate(batch, { completed: 5, failed: 3 })).toBe(true);
  expect(exceedsErrorRate({ ...batch, completed: 5, failed: 2 }, { completed: 0, failed: 1 })).toBe(true);
  expect(exceedsErrorRate({ ...batch, paused_at: new Date() }, { completed: 0, failed: 9 })).toBe(false);
  expect(exceedsErrorRate({ ...batch, gateway_options: {} }, { completed: 0, failed: 900 })).toBe(false);
  const byDefault = { ...running, gateway_options: { max_error_rate: 0 } };
  expect(exceedsErrorRate(byDefault, { completed: 0, failed: 99 })).toBe(false);
  expect(exceedsErrorRate(byDefault, { completed: 0, failed: 100 })).toBe(true);
});

test('a reached bound has to be raised or removed, and others can change with it', () => {
  const gateway_options = { max_cost: '5', max_error_rate: 0.1, priority: 3 };
  const reached = { gateway_options, bound_reached: 'max_cost' as const };
  for (const given of [{}, { max_cost: '5.00' }, { max_cost: '4' }, { max_error_rate: 1 }])
    expect(() => requireRaised(reached, given)).toThrow('has reached its max_cost of $5');
  for (const given of [{ max_cost: '5.01' }, { max_cost: null }]) requireRaised(reached, given);
  requireRaised({ gateway_options, bound_reached: null }, {});
  expect(withBounds(gateway_options, { max_cost: null, max_error_rate: 0.2 })).toEqual({
    max_error_rate: 0.2,
    priority: 3,
  });
});

test('a batch without bounds shows none', () => {
  expect(readBounds({ gateway_options: { priority: 1 }, bound_reached: null })).toBeNull();
  expect(readBounds({ gateway_options: { max_cost: '5' }, bound_reached: 'max_cost' })).toEqual({
    max_cost: '5',
    max_error_rate: null,
    max_error_rate_after: 100,
    on_bound: 'pause',
    reached: 'max_cost',
  });
});
