import { expect, test } from 'vitest';
import type { Person } from '#libs/event-log/erase-events.ts';
import type { PositionedEvent } from '#libs/event-log/read-events.ts';
import { erasePersonalTexts } from './personal-texts.ts';

const person: Person = {
  userId: 'user_1',
  emails: ['ann@example.org'],
  subjects: ['auth0|42'],
  streams: new Set(['user_1', 'session_1']),
};

const byUser = { type: 'api_key', id: 'key_1', principal: { type: 'user', id: 'user_1', role: null } };
const byOther = { type: 'user', id: 'user_2' };

const event = (streamId: string, data: object, actor: object = byOther, address = '192.0.2.1') =>
  ({ streamId, data, metadata: { actor, address } }) as unknown as PositionedEvent;

const erased = (before: PositionedEvent) => {
  const after = erasePersonalTexts(before, person);
  return after === null ? null : { data: after.data, address: after.metadata.address };
};

test('names and addresses go from the records of the person, no matter who changed them', () => {
  const data = { email: 'Ann@Example.org', first_name: 'Ann', last_name: '', role: 'member' };
  expect(erased(event('user_1', data))).toEqual({
    data: { email: '[erased]', first_name: '[erased]', last_name: '', role: 'member' },
    address: '192.0.2.1',
  });
  expect(erased(event('session_1', { user_agent: 'Firefox', address: '192.0.2.9' }))?.data).toEqual({
    user_agent: '[erased]',
    address: '[erased]',
  });
});

test('network addresses go from what the person did, and names of others stay there', () => {
  const data = { first_name: 'Bob', addresses: ['192.0.2.9', '192.0.2.10'] };
  expect(erased(event('user_3', data, byUser))).toEqual({
    data: { first_name: 'Bob', addresses: ['[erased]', '[erased]'] },
    address: '[erased]',
  });
});

test('texts that contain the e-mail address, and equal subjects, go everywhere', () => {
  const data = {
    metadata: { owner: 'call ANN@example.org first', other: 'joann@example.com' },
    list: ['auth0|42', 'x'],
  };
  expect(erased(event('batch_1', data))?.data).toEqual({
    metadata: { owner: '[erased]', other: 'joann@example.com' },
    list: ['[erased]', 'x'],
  });
});

test('what others did without naming the person stays as it was', () => {
  expect(erased(event('batch_1', { first_name: 'Ann', address: '192.0.2.1' }))).toBeNull();
});
