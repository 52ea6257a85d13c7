import { expect, test } from 'vitest';
import { describeUnknownVariables } from './known-variables.ts';

test('a variable that nobody reads is named, with the nearest one that somebody reads', () => {
  expect(describeUnknownVariables(['SLUICE_EGRES_ALLOW', 'SLUICE_LOGLEVEL', 'SLUICE_COLOUR_OF_THE_LOGO'])).toEqual([
    'SLUICE_EGRES_ALLOW is not a variable of Sluice and has no effect. Did you mean SLUICE_EGRESS_ALLOW?',
    'SLUICE_LOGLEVEL is not a variable of Sluice and has no effect. Did you mean SLUICE_LOG_LEVEL?',
    'SLUICE_COLOUR_OF_THE_LOGO is not a variable of Sluice and has no effect.',
  ]);
});

test('variables of every process, and those of other programs, are not named', () => {
  const names = ['SLUICE_WORKER_PORT', 'SLUICE_STOP_DELAY', 'SLUICE_SIMULATOR_PORT', 'PORT', 'HOME'];
  expect(describeUnknownVariables(names)).toEqual([]);
});
