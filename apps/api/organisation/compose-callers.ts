import type { Registry } from 'prom-client';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Caller } from '#libs/http/caller.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sessionKind } from '#libs/people/sessions.ts';
import type { Platform } from '../../platform/platform.ts';
import type { ApiConfig } from '../config.ts';
import { createBrowserSessions, type BrowserSessions } from './browser-sessions.ts';
import { createKeyGuard, type KeyGuard } from './guard-keys.ts';
import type { SessionDeps } from './session-routes.ts';
import { createSignIn } from './sign-in.ts';

export type Callers = ReturnType<typeof composeCallers>;

/** Composes everything that identifies callers: keys, tokens of a sign-in service, and sessions of browsers. */
export function composeCallers(
  config: ApiConfig,
  { access, eventLog, egress, databaseClock: clock }: Platform,
  { isStarting, registry, logger }: { isStarting: () => boolean; registry: Registry; logger: Logger },
) {
  const { snapshot, sessions } = access;
  const signIn = createSignIn({ config, snapshot, eventLog, egress, clock, logger });
  const tokens = signIn?.tokens ?? null;
  const keys = createKeyGuard({ config, snapshot, tokens, eventLog, clock, registry, logger });
  const isLiveSession = (id: string): boolean => snapshot.live(sessionKind).byId.has(id);
  const browserSessions = createBrowserSessions({
    sessions,
    isLive: isLiveSession,
    clock,
    ttlMs: config.SLUICE_SESSION_TTL,
    isSecure: config.SLUICE_PUBLIC_URL?.startsWith('https:') === true,
  });
  const authenticate = createAuthentication({ isStarting, keys, browserSessions, snapshot, isLiveSession });
  return { keys, browserSessions, authenticate, parts: [keys.facts, ...(signIn === null ? [] : [signIn.keys])] };
}

/** Authenticates requests by a key, a token or the cookie of a session. */
function createAuthentication({
  isStarting,
  keys,
  browserSessions,
  snapshot,
  isLiveSession,
}: {
  isStarting: () => boolean;
  keys: Pick<KeyGuard, 'authenticate'>;
  browserSessions: BrowserSessions;
  snapshot: Platform['access']['snapshot'];
  isLiveSession: (id: string) => boolean;
}): SessionDeps['authenticate'] {
  /** Handles a session that this process does not know: it has just started elsewhere, or it has ended. */
  const ofLiveSession = async (session: string, caller: Caller | Promise<Caller>): Promise<Caller> => {
    const known = await caller;
    if (!snapshot.absent.has(session)) await snapshot.refresh();
    if (isLiveSession(session)) return known;
    snapshot.absent.add(session);
    throw new GatewayError('unauthenticated', 'session_ended', 'This session has ended. Sign in again.');
  };
  return (request) => {
    if (isStarting()) throw notStartedYet();
    browserSessions.admit(request);
    const caller = keys.authenticate(request);
    const session = browserSessions.sessionOf(request);
    return session === null || isLiveSession(session) ? caller : ofLiveSession(session, caller);
  };
}

const notStartedYet = (): GatewayError =>
  new GatewayError(
    'unavailable',
    'starting',
    'This process is starting. Try again shortly. /health/ready shows what it is waiting for.',
    {
      retryAfterMs: 1_000,
    },
  );
