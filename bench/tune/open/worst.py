import sys; sys.path.insert(0,'bench/tune'); sys.path.insert(0,'python')
import estimate as E, pickle, json
old={}
for r in pickle.load(open('/tmp/play/est_old.pkl','rb')): old.setdefault((r[0],r[1],r[2],r[4],r[5],r[6],r[7],r[8]),{})[r[12]]=r[11]['us']
L=E.tabled()+E.searched()+E.compared()
R=[]
for l in L:
    o=old.get((l.row['operator'],l.row['ranks'],l.row['gpu'].split()[0],l.row['date'],l.row['run'],int(l.row['M']),l.row.get('N'),l.row.get('K')),{})
    names=list(l.times); 
    om=min(names,key=lambda n:o.get(l.strategies[n].to_json(),1e9)); oreg=l.times[om][0]/l.times[l.best][0]
    R.append((l.regret,oreg,l,om,o))
import math
print('sum excess new',sum(r[0]-1 for r in R),'old',sum(r[1]-1 for r in R))
for reg,oreg,l,om,o in sorted(R,key=lambda r:-(r[0]-r[1]))[:int(sys.argv[1])]:
    print(f"{reg:.3f} (main {oreg:.3f})",l.row['operator'],l.row['ranks'],l.row['gpu'],l.row['run'],l.row['date'],*(l.row[x] for x in 'MNK'))
    for n in {l.chosen:1,l.best:1,om:1}:
        j=l.strategies[n].to_json()
        print('     meas %.1f player %.1f main %.1f'%(l.times[n][0],l.times[n][1],o.get(j,0)),j[:260])
