import type { PeopleOptions } from '#libs/resources/define-kind.ts';

/** For record stores in tests that do not involve people. */
export const testPeople: PeopleOptions = {
  usersMax: 100,
  invitesMax: 100,
  membersMax: 100,
  inviteTtlMs: 60_000,
  inviteLink: (token) => `http://127.0.0.1/invite#token=${token}`,
  slowGuesses: () => () => {},
};
