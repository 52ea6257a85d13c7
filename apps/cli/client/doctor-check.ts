/** One thing that `sluice doctor` looked at, here or on the server. `hint` says what to do about it. */
export type Check = { check: string; state: 'ok' | 'warning' | 'problem'; message: string; hint?: string };
