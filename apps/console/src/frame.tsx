import { Link, Outlet, useRouterState } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import { useLiveState } from './api/live.ts';
import icon from './icon.svg';
import { signOut, useActsForOrganisation, useMay, useSession } from './session.tsx';

type Item = { to: string; text: string; scope: string; ofOrganisation?: boolean };

/** What the menu has, the scope that a key needs to see it, and whether it is for those who act for the organisation. */
const sections: readonly { title: string; items: readonly Item[] }[] = [
  {
    title: 'Watch',
    items: [
      { to: '/', text: 'Overview', scope: 'analytics.read' },
      { to: '/batches', text: 'Batches', scope: 'batches.read' },
      { to: '/requests', text: 'Requests', scope: 'logs.read' },
      { to: '/events', text: 'Events', scope: 'audit.read' },
      { to: '/costs', text: 'Cost and limits', scope: 'analytics.read' },
    ],
  },
  {
    title: 'Build',
    items: [
      { to: '/playground', text: 'Playground', scope: 'chat.write' },
      { to: '/prompts', text: 'Prompts', scope: 'prompts.read' },
      { to: '/configs', text: 'Configs', scope: 'configs.read' },
      { to: '/guardrails', text: 'Guardrails', scope: 'guardrails.read' },
    ],
  },
  {
    title: 'Administer',
    items: [
      { to: '/keys', text: 'Keys and providers', scope: 'virtual_keys.read' },
      { to: '/people', text: 'People and workspaces', scope: 'workspaces.read' },
      { to: '/system', text: 'System', scope: 'workspaces.read', ofOrganisation: true },
    ],
  },
];

const liveTexts = {
  connecting: ['warn', 'Connecting…'],
  live: ['good', 'Live'],
  lost: ['bad', 'Connection lost, trying again'],
} as const;

/** The menu beside every page. */
export function Frame() {
  const [isOpen, setOpen] = useState(false);
  const path = useRouterState({ select: ({ location }) => location.pathname });
  useEffect(() => setOpen(false), [path]);
  const { workspace, principal, server } = useSession();
  return (
    <div className="frame">
      <a className="skip" href="#content">
        Skip to the content
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
        {sections.map((section) => (
          <MenuSection key={section.title} {...section} path={path} />
        ))}
        <footer>
          <LiveSign />
          <div>
            <div className="truncate" title={workspace.id}>
              Workspace <strong>{workspace.name}</strong>
            </div>
            <div className="muted truncate">
              {principal.name ?? principal.id}
              {principal.role === null ? '' : `, ${principal.role}`}
            </div>
          </div>
          <ThemeChoice />
          <div className="row">
            <a href="/docs">API reference</a>
            <button type="button" className="plain" onClick={() => void signOut()}>
              Sign out
            </button>
          </div>
          <div className="muted">Sluice {server.version}</div>
        </footer>
      </nav>
      <main className="content" id="content" tabIndex={-1}>
        <Outlet />
      </main>
    </div>
  );
}

const MenuSection = ({ title, items, path }: { title: string; items: readonly Item[]; path: string }) => (
  <>
    <h2>{title}</h2>
    {items.map((item) => (
      <MenuItem key={item.to} {...item} path={path} />
    ))}
  </>
);

function MenuItem({ to, text, scope, ofOrganisation = false, path }: Item & { path: string }) {
  const isAllowed = useMay(scope);
  const actsForOrganisation = useActsForOrganisation();
  if (!isAllowed || (ofOrganisation && !actsForOrganisation)) return null;
  const isCurrent = to === '/' ? path === '/' : path === to || path.startsWith(`${to}/`);
  return (
    <Link to={to} className="item" aria-current={isCurrent ? 'page' : undefined}>
      {text}
    </Link>
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

/** Light, dark, or as the system has it; kept in this browser. */
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
