import type { AccessSnapshot } from '#libs/snapshot/access-snapshot.ts';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import { fetchKeySet } from '#libs/calls/upstream/egress/fetch-key-set.ts';
import { email as emailSchema } from '#libs/contracts/people/people.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { createSigningKeys } from '#libs/identity/signing-keys.ts';
import { claimedRole, tokenCaller, tokenWorkspace, type People } from '#libs/identity/token-caller.ts';
import { createTokenSignIn, type TokenIdentity, type TokenSignIn } from '#libs/identity/token-sign-in.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { emailLookup, subjectLookup, userKind } from '#libs/people/users/users.ts';
import { welcomeUser } from '#libs/people/users/welcome-user.ts';
import { workspaceKind } from '#libs/people/workspaces.ts';
import type { ApiConfig } from '../config.ts';
import { findLive } from '#libs/records/find-by-name.ts';

type Deps = {
  config: ApiConfig;
  snapshot: AccessSnapshot;
  eventLog: EventLog;
  egress: Egress;
  /** The clock of the database, which decides when a token expires. */
  clock: Clock;
  logger: Logger;
};

/**
 * Signs people in by JWTs; null without SLUICE_JWKS_URL. `keys` fetches their public keys while it runs. Throws
 * ConfigurationError when the issuer or the audience is missing.
 */
export function createSignIn({
  config,
  snapshot,
  eventLog,
  egress,
  clock,
  logger,
}: Deps): { tokens: TokenSignIn; keys: Part } | null {
  const { SLUICE_JWKS_URL: jwksUrl, SLUICE_JWT_ISSUER: issuer, SLUICE_JWT_AUDIENCE: audiences } = config;
  if (jwksUrl === undefined) return null;
  if (issuer === undefined || audiences === undefined) {
    throw new ConfigurationError(
      'SLUICE_JWT_ISSUER and SLUICE_JWT_AUDIENCE are required with SLUICE_JWKS_URL. Without them, tokens issued for other services would be accepted.',
    );
  }
  const keys = createSigningKeys({
    fetchKeys: (signal) => fetchKeySet({ egress, signal }, jwksUrl, undefined),
    logger,
  });
  const claims = {
    user: config.SLUICE_JWT_CLAIM_USER,
    workspace: config.SLUICE_JWT_CLAIM_WORKSPACE,
    role: config.SLUICE_JWT_CLAIM_ROLE,
    scopes: config.SLUICE_JWT_CLAIM_SCOPES,
    email: config.SLUICE_JWT_CLAIM_EMAIL,
  };
  if (jwksUrl.startsWith('http:')) {
    logger.warn('SLUICE_JWKS_URL does not use https; anyone who can modify its answers can sign in as any user');
  }
  const byEmail = claims.user === claims.email;
  const known = peopleOf(snapshot, { byEmail });

  /** Creates the user, and adds it to the snapshot. */
  const welcome = async (identity: TokenIdentity): Promise<void> => {
    const { user, email } = identity;
    if (email === null || !emailSchema().safeParse(email).success) throw withoutEmail(claims.email);
    const workspaceId = tokenWorkspace(known, identity, null);
    const subject = byEmail ? null : user;
    const people = { usersMax: config.SLUICE_USERS_MAX, membersMax: config.SLUICE_MEMBERS_MAX };
    await welcomeUser({ eventLog, people }, { email, subject, workspaceId, role: claimedRole(identity) ?? 'member' });
    await snapshot.refresh();
  };

  const tokens = createTokenSignIn({
    settings: {
      issuer,
      audiences,
      toleranceMs: config.SLUICE_JWT_CLOCK_TOLERANCE,
      claims,
      trustsUnmarkedEmail: config.SLUICE_JWT_TRUST_EMAIL,
    },
    keys,
    clock,
    getCaller: (identity) => tokenCaller(known, identity),
    accessVersion: snapshot.version,
    ...(config.SLUICE_JWT_CREATE_USERS ? { welcome } : {}),
  });
  return { tokens, keys };
}

function peopleOf(snapshot: AccessSnapshot, { byEmail }: { byEmail: boolean }): People {
  const users = () => snapshot.live(userKind);
  const workspaces = () => snapshot.live(workspaceKind);
  return {
    findUser(name) {
      const { byId, byLookup } = users();
      // Anyone may have chosen a subject that is an address, so it is not treated as an e-mail address.
      return byEmail ? byLookup.get(emailLookup(name)) : (byLookup.get(subjectLookup(name)) ?? byId.get(name));
    },
    findWorkspace(name) {
      const { byId, records } = workspaces();
      if (byId.has(name)) return name;
      // There are few of them, and a token is looked up again only when people have changed.
      return records.entries().find(([, { slug }]) => slug === name)?.[0];
    },
    onlyWorkspace() {
      const [first, ...others] = workspaces().byId.keys();
      return others.length === 0 ? first : undefined;
    },
    defaultsOf: (workspaceId) => findLive(workspaces(), [workspaceId], workspaceId)?.defaults ?? null,
  };
}

const withoutEmail = (claim: string): GatewayError =>
  new GatewayError(
    'forbidden',
    'email_missing',
    `The token is valid, but it has no verified e-mail address in its claim '${claim}', which a new user needs.`,
  );
