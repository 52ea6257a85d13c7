import { expect, test } from 'vitest';
import { GatewayError } from '#libs/kernel/errors.ts';
import {
  CommitOutcomeUnknownError,
  isConnectionLost,
  isLockTimeout,
  isTransient,
  reasonOf,
  getSqlState,
} from './database-error.ts';

const reported = (code: string) => Object.assign(new Error('from the server'), { code, severity: 'ERROR' });
const system = (code: string) => Object.assign(new Error(`connect ${code}`), { code });

test.for(['08006', '57P01', '57P02', '57P03', '57P05', '40001', '40P01', '53300', '25P03', '25P04'])(
  'SQLSTATE %s is transient',
  (code) => {
    expect(isTransient(reported(code))).toBe(true);
  },
);

test.for(['23505', '42601', '42P01', '28P01', '3D000', '55P03', '57014', '53100', '22003', 'P0001'])(
  'SQLSTATE %s is not transient',
  (code) => {
    expect(isTransient(reported(code))).toBe(false);
  },
);

test.for(['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ETIMEDOUT', 'EAI_AGAIN'])('%s is a lost connection', (code) => {
  expect([isConnectionLost(system(code)), isTransient(system(code))]).toEqual([true, true]);
});

test.for([
  'Connection terminated',
  'Connection terminated unexpectedly',
  'Connection terminated due to connection timeout',
  'timeout expired',
  'timeout exceeded when trying to connect',
  'Client has encountered a connection error and is not queryable',
])('the driver text "%s" is transient', (text) => {
  expect(isTransient(new Error(text))).toBe(true);
});

test('a pool that has no free connection has not lost one', () => {
  expect(isConnectionLost(new Error('timeout exceeded when trying to connect'))).toBe(false);
});

test('what is not about the database is not transient', () => {
  for (const value of [new Error('no'), new TypeError('x is undefined'), system('ENOENT'), 'ECONNRESET', undefined]) {
    expect(isTransient(value)).toBe(false);
  }
});

test('causes and the parts of an aggregate are looked at, also in a circle', () => {
  expect(isTransient(new GatewayError('unavailable', null, 'no', { cause: reported('57P03') }))).toBe(true);
  expect(isTransient(new AggregateError([system('ENOENT'), system('ECONNREFUSED')]))).toBe(true);
  const circle = new Error('round');
  circle.cause = circle;
  expect(isTransient(circle)).toBe(false);
});

test('an unknown outcome is transient', () => {
  const unknown = new CommitOutcomeUnknownError(system('ECONNRESET'));
  expect(isTransient(unknown)).toBe(true);
});

test('only the server reports SQLSTATEs', () => {
  expect(getSqlState(reported('23505'))).toBe('23505');
  expect(getSqlState(system('EPIPE'))).toBeUndefined();
  expect([isLockTimeout(reported('55P03')), isLockTimeout(reported('57014'))]).toEqual([true, false]);
});

test('a Unix socket that is not there is a lost connection, a file is not', () => {
  expect(isConnectionLost(Object.assign(system('ENOENT'), { syscall: 'connect' }))).toBe(true);
  expect(isConnectionLost(Object.assign(system('ENOENT'), { syscall: 'open' }))).toBe(false);
});

test('the reason is that of the connection, however it is wrapped', () => {
  const refused = Object.assign(new AggregateError([system('ECONNREFUSED')], ''), { code: 'ECONNREFUSED' });
  expect(reasonOf(new GatewayError('unavailable', null, 'no', { cause: refused }))).toBe('connect ECONNREFUSED');
  expect(reasonOf(new Error('Migration 0001 failed: …', { cause: reported('57P03') }))).toBe('from the server');
  expect(reasonOf(new Error('else'))).toBe('else');
});
