import { Link, Outlet, useRouterState } from '@tanstack/react-router';
import { useQueryClient } from '@tanstack/react-query';
import { useEffect, useRef, useState } from 'react';
import { retryNow, useLiveState } from './api/live.ts';
import icon from './icon.svg';
import { answerOf, api } from './api/client.ts';
import { serverPath } from './api/server-url.ts';
import { Empty } from './parts/basics.tsx';
import { Confirmed, useChange } from './parts/changes.tsx';
import { signOut, useActsForOrganisation, useSession } from './session.tsx';

type Item = {
  to: string;
  text: string;
  scope: string;
  /** Each of these scopes is also sufficient, for a part of the page. */
  orScopes?: readonly string[];
  ofOrganisation?: boolean;
};

/**
 * The menu items, the scope that a key needs to see each of them, and whether they are for callers that act for the
 * organisation.
 */
const sections: readonly { title: string; items: readonly Item[] }[] = [
  {
    title: 'Watch',
    items: [
      { to: '/', text: 'Overview', scope: 'analytics.read' },
      { to: '/batches', text: 'Batches', scope: 'batches.read' },
      { to: '/replays', text: 'Traffic replays', scope: 'batches.read' },
      { to: '/requests', text: 'Requests', scope: 'logs.read' },
      { to: '/agent-sessions', text: 'Agent sessions', scope: 'analytics.read' },
      { to: '/events', text: 'Events', scope: 'audit.read' },
      { to: '/costs', text: 'Cost and limits', scope: 'analytics.read' },
    ],
  },
  {
    title: 'Build',
    items: [
      { to: '/playground', text: 'Playground', scope: 'chat.write' },
      { to: '/prompts', text: 'Prompts', scope: 'prompts.read' },
      { to: '/models', text: 'Public models', scope: 'public_models.read' },
      { to: '/configs', text: 'Configs', scope: 'configs.read' },
      { to: '/guardrails', text: 'Guardrails', scope: 'guardrails.read' },
    ],
  },
  {
    title: 'Administer',
    items: [
      {
        to: '/keys',
        text: 'Keys and providers',
        scope: 'virtual_keys.read',
        orScopes: ['api_keys.read', 'providers.read'],
      },
      { to: '/webhooks', text: 'Webhooks', scope: 'webhooks.read' },
      {
        to: '/people',
        text: 'People and workspaces',
        scope: 'workspaces.read',
        orScopes: ['members.read', 'users.read'],
      },
      { to: '/system', text: 'System', scope: 'workspaces.read', ofOrganisation: true },
    ],
  },
];

const liveTexts = {
  connecting: ['warn', 'Connecting…'],
  live: ['good', 'Live'],
  lost: ['bad', 'Connection lost, reconnecting…'],
} as const;

/** The menu next to every page. */
export function Frame() {
  const [isOpen, setOpen] = useState(false);
  const path = useRouterState({ select: ({ location }) => location.pathname });
  useEffect(() => setOpen(false), [path]);
  const { workspace, principal, server } = useSession();
  const maySee = useMaySee();
  // The page that is shown: the previous one while the next one is loading.
  const shownPath = useRouterState({ select: ({ matches }) => matches.at(-1)?.fullPath ?? '' });
  const item = sections.flatMap(({ items }) => items).find(({ to }) => isPageOf(to, shownPath));
  const isHidden = item !== undefined && !maySee(item);
  return (
    <div className="frame">
      <a className="skip" href="#content">
        Skip to content
      </a>
      <nav className="side" aria-label="Pages" data-open={isOpen}>
        <div className="brand-row">
          <Link to="/" className="brand">
            <img src={icon} alt="" /> Sluice
          </Link>
          <button type="button" className="menu-button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
            Menu
          </button>
        </div>
        {sections.map(({ title, items }) => (
          <MenuSection key={title} title={title} items={items.filter(maySee)} path={path} />
        ))}
        <footer>
          <LiveSign />
          <div>
            <div className="truncate" title={workspace.name}>
              Workspace{' '}
              <strong>
                <bdi>{workspace.name}</bdi>
              </strong>
            </div>
            <div className="muted truncate">
              <bdi>{principal.name ?? principal.id}</bdi>
              {principal.role === null ? '' : `, ${principal.role}`}
            </div>
          </div>
          <ThemeChoice />
          <div className="row">
            <a href={`${serverPath}/docs`}>API reference</a>
            <button type="button" className="plain" onClick={() => void signOut()}>
              Sign out
            </button>
          </div>
          <div className="row">
            <Link to="/sessions">Your sessions</Link>
            <EndEverywhere />
          </div>
          <div className="muted">Sluice {server.version}</div>
        </footer>
      </nav>
      <main className="content" id="content" tabIndex={-1}>
        <LostBanner />
        {isHidden ? <NotForThisKey item={item} /> : <Outlet />}
      </main>
    </div>
  );
}

/** Does not require a scope, so that everyone can end sessions on lost devices. */
function EndEverywhere() {
  const end = useChange<void, unknown>(['session'], () =>
    answerOf(api.DELETE('/v1/session', { params: { query: { everywhere: 'true' } } })),
  );
  return (
    <Confirmed text="Sign out everywhere" question="Sign out everywhere?" act={end}>
      This ends all browser sessions of your key or user, including this one.
    </Confirmed>
  );
}

const isPageOf = (to: string, path: string): boolean =>
  to === '/' ? path === '/' : path === to || path.startsWith(`${to}/`);

/** Whether the session can see a page of the menu. */
function useMaySee(): (item: Item) => boolean {
  const { scopes } = useSession();
  const actsForOrganisation = useActsForOrganisation();
  return ({ scope, orScopes = [], ofOrganisation = false }) =>
    (scopes === null || [scope, ...orScopes].some((each) => scopes.includes(each))) &&
    (!ofOrganisation || actsForOrganisation);
}

/** Replaces a page whose requests would all be refused. */
function NotForThisKey({ item: { text, scope, ofOrganisation = false } }: { item: Item }) {
  const { scopes } = useSession();
  const others = sections.flatMap(({ items }) => items).filter(useMaySee());
  const lacksScope = scopes !== null && !scopes.includes(scope);
  return (
    <>
      <h1>{text}</h1>
      <Empty title="Your key cannot open this page">
        <p>
          {lacksScope ? (
            <>
              It lacks the scope <code>{scope}</code>. Sign in with a key that has this scope, or with a key created
              without a list of scopes.
            </>
          ) : ofOrganisation ? (
            'Only organisation keys, owners and admins can open it.'
          ) : null}
        </p>
        {others.length === 0 ? (
          <p>This key cannot open any page of the console. It can only be used by programs.</p>
        ) : (
          <p>
            It can open{' '}
            {others.map(({ to, text: name }, index) => (
              <span key={to}>
                {index === 0 ? '' : ', '}
                <Link to={to}>{name}</Link>
              </span>
            ))}
            .
          </p>
        )}
      </Empty>
    </>
  );
}

const MenuSection = ({ title, items, path }: { title: string; items: readonly Item[]; path: string }) =>
  items.length === 0 ? null : (
    <>
      <h2>{title}</h2>
      {items.map(({ to, text }) => (
        <Link key={to} to={to} className="item" aria-current={isPageOf(to, path) ? 'page' : undefined}>
          {text}
        </Link>
      ))}
    </>
  );

/** Shown above every page while the server does not answer, because the data on the page can be outdated. */
function LostBanner() {
  const queries = useQueryClient();
  const state = useLiveState();
  const since = useRef<Date | null>(null);
  if (state === 'live') since.current = null;
  else if (state === 'lost') since.current ??= new Date();
  if (state === 'live' || since.current === null) return null;
  return (
    <div className="note-box bad row" role="alert">
      <span>
        The server has not responded since {since.current.toLocaleTimeString()}. This page may be out of date.
        Reconnecting…
      </span>
      <button type="button" onClick={() => retryNow(queries)}>
        Try again
      </button>
    </div>
  );
}

function LiveSign() {
  const state = useLiveState();
  const [tone, text] = liveTexts[state];
  return (
    <div className="row" role="status">
      <span className={`dot ${tone}`} aria-hidden="true" /> {text}
    </div>
  );
}

const themeName = 'sluice-theme';

/** Light, dark, or the system's choice; stored in this browser. */
function ThemeChoice() {
  const [theme, setTheme] = useState(() => localStorage.getItem(themeName) ?? 'system');
  useEffect(() => {
    localStorage.setItem(themeName, theme);
    if (theme === 'system') delete document.documentElement.dataset['theme'];
    else document.documentElement.dataset['theme'] = theme;
  }, [theme]);
  return (
    <label className="row">
      <span>Theme</span>
      <select value={theme} onChange={(event) => setTheme(event.target.value)}>
        <option value="system">System</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
    </label>
  );
}
