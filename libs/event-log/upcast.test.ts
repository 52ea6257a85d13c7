import { expect, test } from 'vitest';
import type { RecordedEvent } from './event.ts';
import { foldEvent, type InlineModel, type StreamRow } from './inline-model.ts';
import { currentVersion, upcast, type Upcasts } from './upcast.ts';

type Measured = { type: 'thing.measured'; data: { celsius: number; by: string } };
type ThingRow = StreamRow & { celsius: number; by: string };

const upcasts: Upcasts = {
  'thing.measured': [
    ({ fahrenheit }: { fahrenheit: number }) => ({ celsius: ((fahrenheit - 32) * 5) / 9 }),
    ({ celsius }: { celsius: number }) => ({ celsius, by: 'unknown' }),
  ],
};

const measured = (schemaVersion: number, data: object, streamVersion = 1): RecordedEvent => ({
  type: 'thing.measured',
  data,
  eventId: 'e1',
  workspaceId: 'ws_1',
  streamId: 'thing_1',
  streamVersion,
  schemaVersion,
  recordedAt: new Date(0),
});

test('an event of any older version is read in the current shape', () => {
  const current = { celsius: 100, by: 'unknown' };
  expect(currentVersion(upcasts, 'thing.measured')).toBe(3);
  expect(upcast(upcasts, measured(1, { fahrenheit: 212 }))).toMatchObject({ data: current, schemaVersion: 3 });
  expect(upcast(upcasts, measured(2, { celsius: 100 })).data).toEqual(current);
  const newest = measured(3, { celsius: 1, by: 'me' });
  expect(upcast(upcasts, newest)).toBe(newest);
});

test('a type without upcasts has version 1', () => {
  expect(currentVersion(undefined, 'thing.measured')).toBe(1);
  expect(upcast({}, measured(1, { any: 1 })).data).toEqual({ any: 1 });
});

test('an event of a newer release is refused', () => {
  expect(() => upcast(upcasts, measured(4, {}))).toThrow(
    'event e1 has version 4 of thing.measured, this release knows up to 3',
  );
});

test('a model folds events of every version', () => {
  const model: InlineModel<ThingRow, Measured> = {
    name: 'event',
    jsonColumns: [],
    upcasts,
    evolve: (_row, { data }) => data,
  };
  const first = foldEvent(model, undefined, measured(1, { fahrenheit: 32 }) as never);
  expect(first).toMatchObject({ celsius: 0, by: 'unknown', version: 1 });
  expect(foldEvent(model, first, measured(3, { celsius: 7, by: 'me' }, 2) as never)).toMatchObject({ celsius: 7 });
});
