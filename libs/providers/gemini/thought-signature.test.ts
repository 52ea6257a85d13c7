import { expect, test } from 'vitest';
import { checksSignatures, packCallId, unpackCallId } from './thought-signature.ts';

const canonical = 'EskgCsYgAb4+9vtF7/499YQS2bjZs3xcQI+iAl+ILn29nK1j0Kg6uw==';

test.each([
  [{ ownId: undefined, signature: canonical }],
  [{ ownId: 'fc-8_Zk', signature: canonical }],
  [{ ownId: 'fc-8_Zk', signature: 'no base64: ü' }],
  [{ ownId: 'a', signature: 'YQ' }],
])('id and signature come back as they went: %j', (carried) => {
  const id = packCallId(carried, 'call_r1_0_0');
  expect(id).toMatch(/^[A-Za-z0-9_-]+$/);
  expect(unpackCallId(id)).toEqual(carried);
});

test('without a signature the id is Gemini’s own, or the one that was made', () => {
  expect(packCallId({ ownId: 'fc1', signature: undefined }, 'call_r1_0_0')).toBe('fc1');
  expect(packCallId({ ownId: undefined, signature: '' }, 'call_r1_0_0')).toBe('call_r1_0_0');
  expect(unpackCallId('fc1')).toEqual({ ownId: 'fc1', signature: undefined });
  expect(unpackCallId('call_r1_0_0')).toEqual({ ownId: undefined, signature: undefined });
});

test('parallel calls with one signature keep ids of their own', () => {
  const carried = { ownId: undefined, signature: canonical };
  expect(packCallId(carried, 'call_r1_0_0')).not.toBe(packCallId(carried, 'call_r1_0_1'));
});

test.each([
  'call_abcDEF0123456789abcdefgh',
  'toolu_01AbC',
  'tooluse_x-Y',
  'call_ts',
  'call_ts99_short',
  'call_tx1_a',
  '',
])('ids of other providers say nothing to Gemini: %s', (id) => {
  expect(unpackCallId(id)).toEqual({ ownId: undefined, signature: undefined });
});

test('signatures are checked since Gemini 3', () => {
  const models = ['gemini-3-pro-preview', 'gemini-3.1-flash', 'gemini-10-x', 'gemini-2.5-pro', 'gemini-flash-latest'];
  expect(models.filter(checksSignatures)).toEqual(models.slice(0, 3));
});
