import os from 'node:os';
import { expect, test } from 'vitest';
import { operatorMetadata } from './operator-metadata.ts';

test("an operator's command names its user and host", () => {
  const { username: user } = os.userInfo();
  expect(operatorMetadata()).toEqual({ actor: { type: 'system', id: 'cli', user, host: os.hostname() } });
});
